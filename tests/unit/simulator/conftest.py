"""Small ensembles in virtual time: `sim({"a": 100.0}, {"a": 3})` is a run."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import pytest

from hpcbal.cluster.layout import Cluster
from hpcbal.control.progress import ScheduleSettings
from hpcbal.events.ensemble import Delta
from hpcbal.events.members import DnnSpec, StopRule
from hpcbal.policies.rates import RateTable
from hpcbal.simulator.costs import Costs
from hpcbal.simulator.pass_model import PassModel
from hpcbal.simulator.record import SimulatedRun
from hpcbal.simulator.run import simulate

MAX_EPOCHS = 50
_OF_SIMULATE = ("known", "resume", "keep_events", "kept_per_added_node", "curves", "evidence")


def run(
    rates: Mapping[str, float | Mapping[int, float]],
    epochs: Mapping[str, int],
    *,
    slots: tuple[int, ...] = (4,),
    passes: PassModel | None = None,
    costs: Costs | None = None,
    **others: Any,
) -> SimulatedRun:
    """A run of DNNs with these rates (on one slot, or by number) on nodes with this many slots.

    A pass has 1,000 samples unless `passes` says otherwise. `others` go to `simulate` or ScheduleSettings.
    """
    passes = passes or PassModel(1000)
    direct = {name: others.pop(name) for name in _OF_SIMULATE if name in others}
    settings = {"delta": Delta(absolute=20.0), "profile": False} | others
    return simulate(
        [DnnSpec(name, 8, StopRule(max_epochs=MAX_EPOCHS)) for name in rates],
        Cluster.uniform(len(slots), slots[0]),
        ScheduleSettings(num_positions=passes.num_positions, **settings),
        RateTable({n: dict(r) if isinstance(r, Mapping) else {1: r} for n, r in rates.items()}, slots[0]),
        passes,
        epochs=epochs,
        costs=costs,
        **direct,
    )


@pytest.fixture
def sim() -> Callable[..., SimulatedRun]:
    """`run`, see above."""
    return run
