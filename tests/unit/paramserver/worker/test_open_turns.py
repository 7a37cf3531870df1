"""Reports of turns leave in the order of the turns."""

from __future__ import annotations

import itertools
from functools import partial

import pytest

from hpcbal.paramserver.master.messages import TurnDone
from hpcbal.paramserver.worker.samples import OpenTurns


def turn(step: int) -> TurnDone:
    return TurnDone(step, (0,), 1, 0.1, 0.1, 0.1, 8)


@pytest.mark.parametrize("order", list(itertools.permutations(range(3))))
def test_a_turn_is_reported_after_those_before_it(order: tuple[int, ...]) -> None:
    reported: list[TurnDone] = []
    turns = OpenTurns(reported.append)
    done = [turns.begin() for _ in range(3)]
    for count, step in enumerate(order, start=1):
        done[step](turn(step))
        over = set(order[:count])
        first_open = next((step for step in range(3) if step not in over), 3)
        assert [report.step for report in reported] == list(range(first_open))
        assert len(turns) == 3 - first_open


def test_what_waits_for_turns_is_called_when_those_that_have_begun_are_reported() -> None:
    called: list[str] = []
    turns = OpenTurns(lambda report: called.append(f"turn {report.step}"))
    turns.after(partial(called.append, "at once"))
    first = turns.begin()
    turns.after(partial(called.append, "after 0"))
    second = turns.begin()
    turns.after(partial(called.append, "after 1"))
    turns.after(partial(called.append, "also after 1"))
    assert called == ["at once"]
    second(turn(1))
    assert called == ["at once"]
    first(turn(0))
    assert called == ["at once", "turn 0", "turn 1", "after 0", "after 1", "also after 1"]
