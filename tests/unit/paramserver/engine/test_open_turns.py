"""Reports of turns leave in the order of the turns."""

from __future__ import annotations

import itertools

import pytest

from hpcbal.paramserver.engine.open_turns import OpenTurns
from hpcbal.paramserver.machine.messages import TurnDone


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
