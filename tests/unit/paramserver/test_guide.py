"""The guide shows an app of one's own that works, and lists what comes with hpcbal."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

from hpcbal.events.history import OTHER_FIELDS
from hpcbal.paramserver import apps, networks

ROOT = Path(__file__).parents[3]
GUIDE = (ROOT / "docs/parameter-servers.md").read_text(encoding="utf-8")
EXAMPLE = (ROOT / "docs/examples/completion.py").read_text(encoding="utf-8")


def test_the_example_trains_as_the_guide_shows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "docs/examples"))
    assert f"```python\n{EXAMPLE}```\n" in GUIDE
    (shown,) = re.findall(r"```python\n(from completion import .*?)```", GUIDE, flags=re.DOTALL)
    names: dict[str, object] = {}
    exec(shown, names)
    sys.modules.pop("completion")
    losses = [epoch["rmse"] for epoch in names["metrics"]]  # type: ignore[attr-defined]
    assert losses[0] > 0.1
    assert losses[-1] < 0.02  # the entries have a standard deviation of 1.7, and no noise


def test_the_guide_lists_every_app_and_dataset() -> None:
    tables = GUIDE.partition("## Apps that come with hpcbal")[2]
    listed = re.findall(r"^\| `(\w+)` \|", tables, flags=re.MULTILINE)
    assert sorted(listed) == sorted([*apps.__all__, *networks.__all__])


def test_the_guide_lists_names_that_no_metric_may_have() -> None:
    (listed,) = re.findall(r"another field of `metrics.jsonl`: ([^.]*)\.", GUIDE)
    assert set(re.findall(r"`(\w+)`", listed)) == OTHER_FIELDS
