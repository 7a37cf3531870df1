"""The event log and the error of state machines, tried with a machine made up for the test."""

from __future__ import annotations

import pickle
from dataclasses import dataclass
from typing import ClassVar

from hypothesis import given
from hypothesis import strategies as st

from hpcbal.events.event_log import MAX_LINE, NUM_SHOWN, NUM_SHOWN_PER_SUBJECT, EventLog, MachineError
from hpcbal.events.history import main_metric


@dataclass(frozen=True)
class Pushed:
    """An event of a made-up machine: one about a block, or about the whole store if `block` is empty."""

    block: str
    text: str = ""


class StoreError(MachineError):
    """The error of the made-up machine."""

    machine: ClassVar[str] = "store"


def subject_of(event: Pushed) -> str | None:
    return event.block or None


def test_an_error_shows_the_events_of_its_subject_and_of_the_machine() -> None:
    own, other = Pushed("b1", "x"), Pushed("b2", "y")
    text = str(StoreError("what happened", "b1", (own,), (other, own)))
    assert text.splitlines() == [
        "what happened",
        "  events of b1:",
        f"    {own!r}",
        "  last events of the store:",
        f"    {other!r}",
        f"    {own!r}",
    ]


def test_an_error_without_events_says_so() -> None:
    assert "events of b1: none" in str(StoreError("what", "b1"))
    assert str(MachineError("what")) == "what\n  last events of the machine: none"


def test_an_error_keeps_its_class_and_events_when_pickled() -> None:
    error = StoreError("what", "b1", (Pushed("b1"),), (Pushed("b1"), Pushed("")))
    again = pickle.loads(pickle.dumps(error))
    assert type(again) is StoreError
    assert (again.problem, again.subject, again.subject_events, again.events) == error.args
    assert str(again) == str(error)


def test_long_events_are_shortened() -> None:
    events = tuple(Pushed("", str(i) * 300) for i in range(50))
    lines = str(StoreError("what", "", (), events)).splitlines()
    assert len(lines) == 2 + NUM_SHOWN
    assert max(map(len, lines)) == MAX_LINE + 4


def test_the_log_is_bounded_and_counts_what_it_lost() -> None:
    log: EventLog[Pushed] = EventLog(4, subject_of)
    for i in range(6):
        log.append(Pushed("", str(i)))
    assert [event.text for event in log.events] == ["2", "3", "4", "5"]
    assert (log.num_dropped, log.is_half_full) == (2, True)
    log.restart([Pushed("", "new")])
    assert (log.num_dropped, log.is_half_full, log.events) == (0, False, (Pushed("", "new"),))


@given(st.lists(st.sampled_from(["b1", "b2", ""])), st.integers(1, 40))
def test_the_events_of_a_subject_are_its_latest_in_their_order(blocks: list[str], bound: int) -> None:
    log: EventLog[Pushed] = EventLog(bound, subject_of)
    for i, block in enumerate(blocks):
        log.append(Pushed(block, str(i)))
    kept = [(block, i) for i, block in enumerate(blocks)][-bound:]
    own = [str(i) for block, i in kept if block == "b1"][-NUM_SHOWN_PER_SUBJECT:]
    assert [event.text for event in log.of("b1")] == own
    assert log.num_dropped == len(blocks) - len(kept)


def test_a_count_is_no_metric_by_which_jobs_are_compared() -> None:
    assert main_metric([["loss", "num_nonzero"]]) == "loss"
    assert main_metric([["loss", "num_nonzero", "val_r2"]]) == "r2"
