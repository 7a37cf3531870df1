"""Flotillas of an ensemble, for tests."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from hpcbal.policies.flotilla import Delta, Flotilla, FlotillaPlanner
from hpcbal.policies.rates import RateTable


def create_flotilla(
    candidates: Sequence[str],
    rates: RateTable,
    num_slots: int,
    delta: Delta,
    max_slots_per_dnn: int | None = None,
    batch_sizes: Mapping[str, int] | None = None,
) -> Flotilla:
    """The first flotilla of these candidates; arguments and errors as of `FlotillaPlanner`."""
    planner = FlotillaPlanner(candidates, rates, num_slots, delta, max_slots_per_dnn, batch_sizes)
    return planner.flotilla(candidates, num_slots)


def plan_all_flotillas(
    candidates: Sequence[str],
    rates: RateTable,
    num_slots: int,
    delta: Delta,
    max_slots_per_dnn: int | None = None,
    batch_sizes: Mapping[str, int] | None = None,
) -> list[Flotilla]:
    """All flotillas of these candidates; arguments and errors as of `FlotillaPlanner`."""
    planner = FlotillaPlanner(candidates, rates, num_slots, delta, max_slots_per_dnn, batch_sizes)
    return planner.all_flotillas(candidates, num_slots)
