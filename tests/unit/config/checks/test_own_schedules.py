"""A schedule of the user's own: `validate` takes what a run takes."""

from __future__ import annotations

from pathlib import Path

import pytest

from hpcbal.config import load_config
from hpcbal.errors import ConfigError

HEAD = """\
name: own
data: {dataset: hpcbal.data:digits}
dnns:
  - name: a
    model: hpcbal.models:softmax
    batch_size: 8
    stop: {max_epochs: 2}
    optimizer: {name: sgd, learning_rate: 0.1, schedule: {name: "checked_schedules:%s", args: %s}}
"""
MODULE = """\
def of_step(step): return 0.1
def of_both(step, steps_per_epoch): return 0.1
def decaying(step, decay): return decay**step
def of_three(step, steps_per_epoch, first): return first
def of_nothing(): return 0.1
"""


@pytest.mark.parametrize(
    ("name", "args", "problem"),
    [
        ("of_step", "{}", ""),
        ("of_both", "{}", ""),
        ("decaying", "{decay: 0.9}", ""),
        ("of_three", "{first: 0.1}", ""),
        ("of_three", "{}", "checked_schedules:of_three needs the argument first"),
        ("of_both", "{first: 0.1}", "has no argument 'first', allowed: none"),
        ("of_nothing", "{}", "takes step and steps_per_epoch first; for example of_nothing(step, steps_per"),
    ],
)
def test_a_function_takes_the_step_and_may_take_the_steps_of_an_epoch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, args: str, problem: str
) -> None:
    (tmp_path / "checked_schedules.py").write_text(MODULE)
    monkeypatch.syspath_prepend(str(tmp_path))
    path = tmp_path / "run.yaml"
    path.write_text(HEAD % (name, args))
    if not problem:
        load_config(path, check_imports=True)
        return
    with pytest.raises(ConfigError, match=r"optimizer\.schedule") as caught:
        load_config(path, check_imports=True)
    assert problem in str(caught.value)
