"""A run does what was foreseen before it, whatever its schedule."""

from __future__ import annotations

from typing import Any

import pytest

from hpcbal.control.paradigms import PARADIGM_NAMES
from hpcbal.control.prediction import foreseen_flotillas
from hpcbal.events.ensemble import StartGroup, StartRound
from hpcbal.policies.pruning.rules import Asha, PruneRule

EPOCHS = dict(zip("abcdefg", (4, 9, 6, 3, 8, 7, 5), strict=True))


def slots_of(instructions: list[Any]) -> dict[str, int]:
    """Number of slots by DNN, of the groups that start."""
    plans = [i.plan for i in instructions if isinstance(i, StartRound | StartGroup)]
    return {group.dnn_id: len(group.slots) for plan in plans for group in plan.groups}


def foreseen(run: Any) -> list[dict[str, int]]:
    specs, cluster, settings, rates, _ = run.ensemble.origin
    return [
        dict(zip(flotilla.dnn_ids, flotilla.num_slots, strict=True))
        for flotilla in foreseen_flotillas(specs, cluster, settings, rates)
    ]


@pytest.mark.parametrize("prune", [None, Asha(reduction=2, min_epochs=1)], ids=["no rule", "asha"])
@pytest.mark.parametrize("paradigm", PARADIGM_NAMES)
def test_the_first_flotilla_is_the_first_round(drive: Any, paradigm: str, prune: PruneRule | None) -> None:
    run = drive(EPOCHS, (3,), paradigm=paradigm, prune=prune)
    first, *_ = foreseen(run)
    assert first == slots_of(run.start())


@pytest.mark.parametrize("paradigm", ["global", "homogeneous"])
def test_all_flotillas_are_the_rounds_of_dnns_that_converge_together(drive: Any, paradigm: str) -> None:
    run = drive(dict.fromkeys(EPOCHS, 1), (3,), paradigm=paradigm)
    expected = foreseen(run)
    assert sorted(name for flotilla in expected for name in flotilla) == sorted(EPOCHS)
    instructions = run.start()
    for flotilla in expected:
        assert slots_of(instructions) == flotilla
        run.epoch(*flotilla)
        instructions = run.leave(*flotilla)
    assert run.ensemble.outcome == "done"
