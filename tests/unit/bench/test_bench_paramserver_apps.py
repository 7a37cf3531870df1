"""Quality and time of an app over those of its peer."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from bench_paramserver_apps import Point, figures, main


def test_time_counts_until_both_are_near_the_worse_of_the_last_objectives() -> None:
    own = [Point(1, 1.0, 5.0), Point(2, 2.0, 2.01), Point(3, 3.0, 2.0)]
    peer = [Point(1, 0.5, 3.0), Point(10, 4.0, 1.0)]
    assert figures("nmf", own, peer) == {"nmf_objective": 2.0, "nmf_seconds": 0.5}
    assert figures("nmf", peer, own)["nmf_seconds"] == 2.0


def test_a_short_bench_writes_its_figures(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    main(["--apps", "nmf", "lasso", "--scale", "0.1", "--json", str(tmp_path / "apps.json")])
    written = json.loads((tmp_path / "apps.json").read_text(encoding="utf-8"))
    assert written["lasso_epoch_s"] > 0
    assert 0.5 < written["nmf_objective"] < 2.0
    assert "nmf_seconds" in capsys.readouterr().out
