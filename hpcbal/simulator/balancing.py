"""How fast a trainer group really trains, and its speed as the executor asks for it."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from hpcbal.cluster.layout import Cluster, num_nodes_used
from hpcbal.errors import InputError
from hpcbal.events.ensemble import GroupPlan
from hpcbal.policies.rates import RateTable

if TYPE_CHECKING:
    from hpcbal.policies.batching import BatchingPolicy

_RATES = 0x4A7E
"""Separates the random stream of the rates from others with the same seed."""


class GroupRates:
    """Rates of trainer groups on their slots.

    A rate table holds the rate of a group on the fewest possible nodes. Gradients travel more slowly between
    nodes than inside one, so each added node costs a share of the rate:

        rate = r(m) * kept_per_added_node ** (nodes spanned - ceil(m / slots of a full node))

    Args:
        table: r(m) of every DNN on the fewest nodes.
        cluster: the allocation; its largest node counts as a full one.
        kept_per_added_node: share of the rate, above 0, at most 1 (placement then has no effect).

    Raises:
        InputError: if the share is out of range.
    Source: [FLEET] Sec. 4.3.1, Principle 3, and Sec. 4.3.2, Eq. 4, which count the nodes of a group. The
        paper gives no figure for the cost of a node.
    """

    def __init__(self, table: RateTable, cluster: Cluster, kept_per_added_node: float = 1.0) -> None:
        if not 0.0 < kept_per_added_node <= 1.0:
            raise InputError(
                f"kept_per_added_node: got {kept_per_added_node}, allowed: a number above 0, at most 1"
            )
        self._table = table
        self._node_of_slot = cluster.node_of_slots()
        self._full_node = cluster.max_slots_per_node
        self._kept = kept_per_added_node

    def rate(self, dnn_id: str, slots: Sequence[int]) -> float:
        """Samples per second of a DNN on these slots of the cluster, at least one.

        Raises:
            PolicyError: if the rate of the DNN on one slot is not known.
        """
        num_added = num_nodes_used(slots, self._node_of_slot) - -(-len(slots) // self._full_node)
        return self._table.rate(dnn_id, len(slots)) * self._kept**num_added


def varied_rates(table: RateTable, deviation: float, seed: int) -> RateTable:
    """The rates of one run; they vary from run to run.

    The rates of a DNN are multiplied by exp(deviation * z), with z from the standard normal distribution: one
    z per DNN and seed, for all numbers of slots, so that scaling does not change.

    Args:
        table: rates without variation.
        deviation: relative deviation over the seeds, >= 0; 0 returns the table itself.
        seed: >= 0.

    Raises:
        InputError: if the deviation is negative or not a number.
    """
    if not (math.isfinite(deviation) and deviation >= 0.0):
        raise InputError(f"rate_deviation: got {deviation}, allowed: a number, 0 or more")
    if deviation == 0.0:
        return table
    z = np.random.default_rng((seed, _RATES)).standard_normal(len(table.measured))
    measured = {
        dnn_id: {count: rate * math.exp(deviation * float(own)) for count, rate in rate_by_count.items()}
        for own, (dnn_id, rate_by_count) in zip(z, table.measured.items(), strict=True)
    }
    return RateTable(measured, table.slots_per_node)


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
