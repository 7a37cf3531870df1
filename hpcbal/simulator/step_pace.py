"""The speed of trainer groups on unlike slots: steps in virtual time, split by the groups' policies."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from hpcbal.control import DnnSpec
from hpcbal.control.splitting import step_task
from hpcbal.events.ensemble import GroupPlan
from hpcbal.policies import RateTable
from hpcbal.policies.batching import split_evenly
from hpcbal.simulator.balancing import Balancing, Pace
from hpcbal.simulator.pass_model import PassModel
from hpcbal.simulator.virtual_group import Counts, VirtualGroup


class StepPace(Pace):
    """Groups take their passes step by step, because slots differ and policies split every step.

    A group's rate is the mean over one pass and counts as constant within the pass. Once its policy has made
    the same decision many times, all further passes take as long as the last one.

    Args:
        specs: the DNNs, by name.
        rates: of DNNs on one slot; rates on more slots are not used.
        passes: samples of a pass.
        balancing: slots and policies.
    """

    def __init__(
        self, specs: Mapping[str, DnnSpec], rates: RateTable, passes: PassModel, balancing: Balancing
    ) -> None:
        self._specs = specs
        self._rates = rates
        self._passes = passes
        self._balancing = balancing
        self._groups: dict[GroupPlan, VirtualGroup] = {}
        self._steady: dict[tuple[GroupPlan, int], float] = {}

    def begin_round(self, group: GroupPlan) -> None:
        """Note that the group is formed; a group that was formed before keeps what it has learnt."""
        if group in self._groups:
            self._groups[group].begin_round()
            return
        spec, balancing = self._specs[group.dnn_id], self._balancing
        task = step_task(
            min(spec.batch_size, self._passes.num_train), len(group.slots), balancing.max_samples_per_slot
        )
        self._groups[group] = VirtualGroup(balancing.policies[group.dnn_id], task)

    def profiled_rate(self, group: GroupPlan) -> float:
        """Samples/s that a profiling run of the group measures, with even shares."""
        batch_size = min(self._specs[group.dnn_id].batch_size, self._passes.num_train)
        return batch_size / max(
            self._seconds(group, split_evenly(batch_size, len(group.slots)), training=True)
        )

    def pass_rate(self, group: GroupPlan, offset: int) -> float:
        if (group, offset) in self._steady:
            return self._steady[group, offset]
        virtual = self._groups[group]
        is_steady = virtual.is_steady
        steps = virtual.steps(
            self._sizes(group, offset), lambda shares, training: self._seconds(group, shares, training)
        )
        rate = self._passes.seconds(1.0, offset) / sum(max(step.seconds) for step in steps)
        if is_steady:
            self._steady[group, offset] = rate
        return rate

    def offered_slot(self, group: GroupPlan) -> int | None:
        rank = self._groups[group].remove
        return None if rank is None else group.slots[rank]

    def _sizes(self, group: GroupPlan, offset: int) -> list[tuple[int, bool]]:
        """Samples of each step from `offset` to the end of a pass, and whether it trains."""
        passes, batch_size, sizes = self._passes, self._specs[group.dnn_id].batch_size, []
        while offset < passes.num_positions:
            training = offset < passes.num_train
            end = min(offset + batch_size, passes.num_train if training else passes.num_positions)
            sizes.append((end - offset, training))
            offset = end
        return sizes

    def _seconds(self, group: GroupPlan, shares: Counts, training: bool) -> Sequence[float]:
        """Seconds that each slot of the group needs for its share; 0 without samples."""
        rate, workers = self._rates.rate(group.dnn_id, 1), self._balancing.workers
        speedup = 1.0 if training else self._passes.validation_speedup
        seconds = []
        for slot, num_samples in zip(group.slots, shares, strict=True):
            worker = workers[slot % len(workers)]
            linear_s = worker.launch_s + num_samples / (rate * worker.speed)
            seconds.append(max(worker.floor_s, linear_s) / speedup if num_samples else 0.0)
        return seconds
