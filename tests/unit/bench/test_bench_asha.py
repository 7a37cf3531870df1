"""What a sweep costs is read from its ledger."""

from __future__ import annotations

import pytest
from bench_asha import figures, read
from ledger_lines import a, entry, plan_of

from hpcbal.events.ensemble import EpochDone, GroupLeft, StartRound
from hpcbal.events.line import Line
from hpcbal.telemetry.ledger import Entry, RunFinishedLine


def ledger(*lines: tuple[float, Line]) -> list[Entry]:
    """Lines with the second at which they were written."""
    return [entry(line, seq, 1.79e9 + second) for seq, (second, line) in enumerate(lines)]


def epoch(dnn: str, accuracy: float) -> Line:
    return a(EpochDone, dnn_id=dnn, metrics={"val_accuracy": accuracy})


def left(dnn: str, slot_seconds: float) -> Line:
    return a(GroupLeft, dnn_id=dnn, slot_seconds=slot_seconds)


PLAIN = [
    (0.0, StartRound(plan_of({"x": (0,), "y": (1, 2)}))),
    (2.0, epoch("x", 0.5)),
    (2.0, epoch("y", 0.4)),
    (4.0, epoch("x", 0.8)),
    (4.0, left("x", 4.0)),
    (5.0, epoch("y", 0.9)),
    (5.0, left("y", 10.0)),
]
END = (9.0, a(RunFinishedLine, outcome="done"))


def test_slot_seconds_count_from_getting_slots_to_leaving_them() -> None:
    found = read(ledger(*PLAIN, END))
    assert (found.slot_s, found.num_epochs, found.best) == (14.0, 4, 0.9)
    assert found.course == ((6.0, 0.5), (6.0, 0.5), (12.0, 0.8), (14.0, 0.9))
    assert found.slot_s_until(0.6) == 12.0


def test_shares_compare_whole_sweeps_and_the_way_to_the_same_accuracy() -> None:
    pruned = read(ledger(*PLAIN[:3], (2.0, left("y", 4.0)), *PLAIN[3:5], END))
    found = figures({"none": read(ledger(*PLAIN, END)), "asha": pruned})
    assert found["asha_share"] == pytest.approx(8.0 / 14.0)
    assert found["asha_accuracy_lost"] == pytest.approx(0.1)
    assert found["asha_epochs_share"] == 0.75
    assert found["asha_share_to_accuracy"] == pytest.approx(8.0 / 12.0)


def test_a_sweep_that_was_stopped_is_no_figure() -> None:
    with pytest.raises(SystemExit, match="did not finish"):
        read(ledger(*PLAIN))
