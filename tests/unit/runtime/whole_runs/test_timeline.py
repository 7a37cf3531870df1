"""timeline.json.gz shows what each rank did, with slices that lie one inside or behind the other."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

NUM_RANKS = 4


def events_of(path: Path) -> list[dict[str, Any]]:
    """By the standard library alone, to the file's very end."""
    events: list[dict[str, Any]] = json.loads(gzip.decompress(path.read_bytes()))
    return events


def slices_of(lab: Any) -> list[dict[str, Any]]:
    return [event for event in events_of(lab.out / "timeline.json.gz") if event["ph"] == "X"]


def test_slices_of_a_rank_lie_one_inside_or_behind_the_other(lab: Any) -> None:
    assert lab.run() == 0
    slices = slices_of(lab)
    kinds = {
        rank: {event["cat"] for event in slices if event["tid"] == rank + 1} for rank in range(NUM_RANKS)
    }
    assert "preprocess" in kinds[1]
    for rank in (2, 3):
        assert {"compute", "pass", "load", "wait for the others"} <= kinds[rank]
    for rank in range(NUM_RANKS):
        mine = [event for event in slices if event["tid"] == rank + 1]
        around: list[dict[str, Any]] = []
        for event in sorted(mine, key=lambda event: (event["ts"], -event["dur"])):
            assert event["dur"] >= 0
            while around and around[-1]["ts"] + around[-1]["dur"] <= event["ts"]:
                around.pop()
            if around:
                assert event["ts"] + event["dur"] <= around[-1]["ts"] + around[-1]["dur"], (event, around[-1])
            around.append(event)
            if event["cat"] in ("compute", "all-reduce", "wait for data"):
                assert [outer["cat"] for outer in around[:-1]] == ["pass"], (event, around)


def test_no_timeline_is_made_when_it_is_switched_off(lab: Any) -> None:
    lab.use(timeline={"max_bytes": 0})
    assert lab.run() == 0
    assert not (lab.out / "timeline.json.gz").exists()
