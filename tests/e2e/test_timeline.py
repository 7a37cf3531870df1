"""timeline.json.gz of real runs: every rank has its track, and a kill leaves a whole file."""

from __future__ import annotations

import gzip
import json
import signal
from pathlib import Path
from typing import Any

import pytest

pytestmark = [pytest.mark.e2e, pytest.mark.mpi]


def events_of(path: Path) -> list[dict[str, Any]]:
    """By the standard library alone, to the file's very end."""
    events: list[dict[str, Any]] = json.loads(gzip.decompress(path.read_bytes()))
    return events


def kinds_by_rank(path: Path) -> dict[int, set[str]]:
    kinds: dict[int, set[str]] = {}
    for event in events_of(path):
        if event["ph"] == "X":
            kinds.setdefault(event["tid"] - 1, set()).add(event["cat"])
    return kinds


def test_every_rank_has_a_track_with_what_it_did(finished: Any) -> None:
    path = finished.lab.out / "timeline.json.gz"
    kinds = kinds_by_rank(path)
    assert "preprocess" in kinds[1]
    for rank in (2, 3, 4):
        assert {"compute", "pass", "load", "wait for the others"} <= kinds[rank]
    assert any("all-reduce" in kinds[rank] for rank in (2, 3, 4))
    assert any("checkpoint" in kinds[rank] for rank in (2, 3, 4))
    names = {e["args"]["name"] for e in events_of(path) if e["name"] == "thread_name"}
    assert {"rank 0: scheduler", "rank 1: preprocessor", "rank 2: slot 0"} <= names


def test_passes_take_what_the_ledger_says(finished: Any) -> None:
    lab = finished.lab
    slices = [event for event in events_of(lab.out / "timeline.json.gz") if event.get("cat") == "pass"]
    for epoch in lab.events("epoch-done"):
        name = f"{epoch.dnn_id} pass {epoch.pass_index}"
        of_ranks = [event["dur"] / 1e6 for event in slices if event["name"] == name]
        assert pytest.approx(epoch.seconds, abs=1e-5) in of_ranks  # the master's


def test_a_killed_run_leaves_a_report_and_a_whole_timeline_that_the_next_start_continues(lab: Any) -> None:
    lab.configure(
        lambda config: config["backend"].update(rates={n: {1: 60} for n in "abc"}), slots={"per_node": 1}
    )
    running = lab.start()
    path = lab.out / "timeline.json.gz"

    def trains() -> bool:
        kinds = kinds_by_rank(path) if path.exists() else {}
        return len(kinds) >= 2 and bool({"compute", "pass"} & set.union(*kinds.values()))

    running.until(trains, "slices of both, some of training")
    running.signal_rank(0, signal.SIGKILL)
    assert running.wait().code != 0
    assert lab.events("run-finished") == []
    before = events_of(path)
    done = lab.run_here("report", "out", "--no-plots")
    assert done.code == 0, done
    page = (lab.out / "report.html").read_text()
    assert "interrupted" in page
    assert "Run the same command again to resume from the last checkpoints" in page
    assert not (lab.out / "report-plots").exists()
    done = lab.run()
    assert done.code == 0, done
    after = events_of(path)
    assert after[: len(before)] == before
    assert len(after) > len(before)
