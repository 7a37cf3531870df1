"""Learning curves that simulations draw, and what pruning saves with them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from hpcbal.ensembling.evidence import decoded
from hpcbal.errors import InputError
from hpcbal.events.members import DnnSpec, StopRule
from hpcbal.policies.pruning.committee import Committee
from hpcbal.policies.pruning.rules import Asha, Median
from hpcbal.simulator.learning_curves import CurveLaw
from hpcbal.simulator.record import SimulatedRun

Sim = Callable[..., SimulatedRun]
NAMES = [f"dnn{i:02d}" for i in range(27)]
SPECS = [DnnSpec(name, 8, StopRule(max_epochs=27)) for name in NAMES]
ASHA = Asha(3, 1)


def sweep(sim: Sim, **others: Any) -> SimulatedRun:
    """27 DNNs of 27 epochs, each 10 s long."""
    return sim(dict.fromkeys(NAMES, 100.0), dict.fromkeys(NAMES, 27), **others)


def test_a_curve_belongs_to_a_seed_and_a_name() -> None:
    law = CurveLaw()
    curves = law.draw(SPECS, 7)
    assert [curves(name, 3) for name in NAMES] == [law.draw(SPECS, 7)(name, 3) for name in NAMES]
    assert curves("dnn00", 3) == law.draw(SPECS[:1], 7)("dnn00", 3)
    assert curves("dnn00", 3) != law.draw(SPECS, 8)("dnn00", 3)
    assert len({curves(name, 3) for name in NAMES}) == len(NAMES)


def test_curves_rise_to_their_limits_and_losses_fall() -> None:
    spec = DnnSpec("a", 8, StopRule(monitor="val_loss", mode="min"))
    law = CurveLaw(limits=(0.8, 0.8), speeds=(1.0, 1.0))
    score = law.draw(SPECS[:1], 0)
    assert [score("dnn00", epoch) for epoch in (1, 3)] == pytest.approx([0.4, 0.6])
    loss = law.draw([spec], 0)
    assert [loss("a", epoch) for epoch in (1, 3)] == pytest.approx([0.6, 0.4])


@pytest.mark.parametrize("wrong", [{"limits": (0.9, 0.5)}, {"limits": (0.5, 1.5)}, {"speeds": (0.0, 1.0)}])
def test_bounds_in_the_wrong_order_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(InputError, match=f"curves.{next(iter(wrong))}"):
        CurveLaw(**wrong)


@pytest.mark.parametrize("paradigm", ["global", "local", "homogeneous", "independent"])
def test_asha_trains_a_ninth_of_the_epochs_in_every_paradigm(sim: Sim, paradigm: str) -> None:
    curves = CurveLaw().draw(SPECS, 7)
    pruned = sweep(sim, paradigm=paradigm, slots=(27,), prune=ASHA, curves=curves)
    # Side by side: 27 train 1 epoch, 9 of them 3, 3 of them 9, and 1 trains 27.
    if paradigm != "homogeneous":
        assert pruned.num_epochs == 27 + 9 * 2 + 3 * 6 + 18
    assert pruned.num_pruned == 26
    assert pruned.outcome == "done"
    few = sweep(sim, paradigm=paradigm, slots=(2,), prune=ASHA, curves=curves)
    assert few.num_epochs < 27 * 27 / 4
    assert few.lower_bound_s <= few.makespan_s < sweep(sim, paradigm=paradigm, slots=(2,)).makespan_s / 2
    assert few == sweep(sim, paradigm=paradigm, slots=(2,), prune=ASHA, curves=curves)


def test_the_median_rule_saves_less(sim: Sim) -> None:
    curves = CurveLaw().draw(SPECS, 7)
    run = sweep(sim, slots=(27,), prune=Median(3, 5), curves=curves)
    assert 27 * 3 < run.num_epochs < 27 * 27
    assert 13 <= run.num_pruned <= 26


def test_a_committee_is_simulated_by_the_rule_of_a_run(sim: Sim) -> None:
    law = CurveLaw()
    few = SPECS[:6]
    drawn: dict[str, Any] = {"curves": law.draw(few, 7), "evidence": law.draw_evidence(few, 7)}
    rates, epochs = {s.dnn_id: 100.0 for s in few}, {s.dnn_id: 8 for s in few}
    run = sim(rates, epochs, slots=(2,), prune=Committee(2), **drawn)
    assert run.outcome == "done"
    assert run.num_pruned > 0
    assert 6 * 2 <= run.num_epochs < 6 * 8
    assert run == sim(rates, epochs, slots=(2,), prune=Committee(2), **drawn)
    assert sim(rates, epochs, slots=(2,), prune=Committee(2), curves=drawn["curves"]).num_pruned == 0
    losses = -np.log(decoded(drawn["evidence"]("dnn00", 5))[1])
    assert losses.mean() == pytest.approx(-np.log(drawn["curves"]("dnn00", 5)), rel=1e-2)
