"""The speed of trainer groups as the executor queries it, and the answer for equal slots."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from hpcbal.events.ensemble import GroupPlan
from hpcbal.policies import RateTable
from hpcbal.simulator.group_rates import GroupRates

if TYPE_CHECKING:
    from hpcbal.policies.batching import BatchingPolicy


class WorkerSpeed(Protocol):
    """How one slot differs from the others, from `backend.workers` of a configuration.

    Its time for x samples is max(floor_s, launch_s + x / (rate on 1 slot * speed)).
    """

    @property
    def speed(self) -> float: ...

    @property
    def launch_s(self) -> float: ...

    @property
    def floor_s(self) -> float: ...


@dataclass(frozen=True, slots=True)
class Balancing:
    """Unlike slots, and the policy that splits the steps of each DNN over them.

    Attributes:
        workers: by number of the slot, at least one; more slots repeat them from the first.
        policies: by DNN.
        max_samples_per_slot: the key `balance.max_samples_per_slot`.
    """

    workers: tuple[WorkerSpeed, ...]
    policies: Mapping[str, BatchingPolicy[Any]]
    max_samples_per_slot: int | None = None

    def fastest(self, rates: RateTable, num_slots: int) -> RateTable:
        """Upper bounds of the rates: the fastest slots, without launch costs."""
        speeds = [self.workers[slot % len(self.workers)].speed for slot in range(num_slots)]
        speeds.sort(reverse=True)
        measured = {
            dnn_id: {m: rates.rate(dnn_id, 1) * sum(speeds[:m]) for m in range(1, num_slots + 1)}
            for dnn_id in self.policies
        }
        return RateTable(measured, max(1, num_slots))


class Pace(Protocol):
    """The speed of groups, for the executor."""

    def begin_round(self, group: GroupPlan) -> None:
        """Note that the group is formed."""

    def profiled_rate(self, group: GroupPlan) -> float:
        """Samples/s that a profiling run of the group measures."""

    def pass_rate(self, group: GroupPlan, offset: int) -> float:
        """Samples/s of the group's training steps in its current pass, from `offset` on."""

    def offered_slot(self, group: GroupPlan) -> int | None:
        """The slot without which the group would be faster, after that pass; None: none."""


class RatePace(Pace):
    """All slots are equal; a group's speed depends on its numbers of slots and nodes."""

    def __init__(self, rates: GroupRates) -> None:
        self._rates = rates
        self._rate_of: dict[str, float] = {}  # in its round

    def begin_round(self, group: GroupPlan) -> None:
        """Look up the rate: it stays the same for the whole round."""
        self._rate_of[group.dnn_id] = self._rates.rate(group.dnn_id, group.slots)

    def profiled_rate(self, group: GroupPlan) -> float:
        return self._rates.rate(group.dnn_id, group.slots)

    def pass_rate(self, group: GroupPlan, offset: int) -> float:
        return self._rate_of[group.dnn_id]

    def offered_slot(self, group: GroupPlan) -> None:
        return None
