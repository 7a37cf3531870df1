"""`hpcbal report` on what real runs leave behind: finished or copied.

tests/unit/runtime/whole_runs has those that are under way, stopped or resumed, test_timeline.py a killed one.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from hpcbal.report.reading.run_files import read_run

pytestmark = [pytest.mark.e2e, pytest.mark.mpi]


def test_a_finished_run_has_its_page_and_every_second_adds_up(finished: Any) -> None:
    lab, done = finished
    assert "report.html" in done.out
    assert (lab.out / "report.html").exists()
    data = read_run(lab.out)
    assert (data.state, len(data.rounds), data.failed) == ("done", len(lab.events("round-started")), ())
    results = lab.results()
    for dnn in data.jobs:
        assert (dnn.state, dnn.epochs) == (results[dnn.name].state, results[dnn.name].epochs)
        assert dnn.best == pytest.approx(results[dnn.name].best)
        assert dnn.wall_time_s == pytest.approx(results[dnn.name].wall_time_s, abs=0.1)
    for use in data.use:
        assert sum(use.seconds.values()) == pytest.approx(data.duration_s)
        assert all(seconds >= 0.0 for seconds in use.seconds.values())
    assert data.use_share("training") > 0.3
    assert any(rate.measured is not None for rate in data.rates)
    for rate in data.rates:
        assert rate.planned is not None
        assert rate.measured is None or 0.3 < rate.measured / rate.planned < 1.1
    assert all(each.stream_samples_per_s for each in data.rounds)


def test_page_plots_and_values_of_a_copy(finished: Any, tmp_path: Path) -> None:
    lab, copy = finished.lab, tmp_path / "laptop" / "copy"
    shutil.copytree(lab.out, copy)
    done = lab.run_here("report", str(copy), "--output", str(tmp_path / "mine.html"))
    assert done.code == 0, done
    assert done.err == ""
    assert (tmp_path / "mine.html").read_text().startswith("<!DOCTYPE html>")
    plots = {path.name for path in (tmp_path / "mine-plots").iterdir()}
    names = ("slots", "learning", "losses", "settings", "use", "rates", "preprocessing")
    assert plots == {f"{name}.{suffix}" for name in names for suffix in ("png", "svg")}
    reported = json.loads(lab.run_here("report", str(copy), "--json").out)
    assert (reported["name"], reported["state"], len(reported["dnns"])) == ("lab", "done", 3)


def test_what_is_no_run_is_refused_in_one_line(lab: Any) -> None:
    for given, reported in (
        (".", "no ledger.jsonl"),
        ("nowhere", "no such directory"),
        ("run.yaml", "is a file"),
    ):
        done = lab.run_here("report", given)
        assert done.code == 2, done
        assert reported in done.err
        assert len(done.err.splitlines()) == 1, done
    assert not (lab.folder / "report.html").exists()
