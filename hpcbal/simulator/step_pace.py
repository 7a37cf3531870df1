"""The speed of trainer groups on unlike slots: steps in virtual time, split by the groups' policies."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from hpcbal.control.splitting.machine import (
    Announced,
    AskPolicy,
    Decided,
    SplitRules,
    Splitting,
    StepMeasured,
    scaled_to_step,
    step_task,
)
from hpcbal.events.ensemble import GroupPlan
from hpcbal.events.members import DnnSpec
from hpcbal.policies.batching import BatchingPolicy, BatchTask, Observation, split_evenly
from hpcbal.policies.rates import RateTable
from hpcbal.simulator.balancing import Balancing, Pace
from hpcbal.simulator.pass_model import PassModel

STEADY_AFTER = 64
"""Decisions in a row that change nothing before a group counts as steady. No policy looks further back, and
virtual times have no noise, so the policy would always make the same decision."""

Counts = tuple[int, ...]
Times = Sequence[float]


@dataclass(frozen=True, slots=True)
class VirtualStep:
    """One step of training or validation.

    Attributes:
        shares: samples of each rank.
        training: whether it is a training step.
        seconds: computing time of each rank.
    """

    shares: Counts
    training: bool
    seconds: Times


class VirtualGroup:
    """One group's steps, pass by pass.

    It plans, measures and follows announcements at the same points as a rank of a real run (the runtime's
    `Feeder` and `DecidedSplit`). Only time is virtual: decisions take none, and a decision in the background
    is ready before the next step ends.

    Args:
        policy: splits the steps; a policy that never decides keeps its first split.
        task: a full step.
        is_noisy: whether equal shares may take unequal times; such a group never becomes steady.

    Attributes:
        machine: the group's splitting machine; None if the policy never decides.
    """

    def __init__(self, policy: BatchingPolicy[Any], task: BatchTask, *, is_noisy: bool = False) -> None:
        self._policy = policy
        self._sizes: Counts = policy.start(task).batch_sizes
        self.machine = Splitting(SplitRules.of(policy), policy.start(task)) if policy.decides else None
        self._pending: AskPolicy | None = None
        self._num_same = 0
        self._is_noisy = is_noisy

    @property
    def is_steady(self) -> bool:
        """Whether the split will not change any more, provided that the speeds of all ranks stay the same."""
        if self.machine is None or self.machine.gave_up:
            return True
        return not self._is_noisy and self._num_same >= STEADY_AFTER

    @property
    def remove(self) -> int | None:
        """Rank without which the group would be faster; None: none."""
        return None if self.machine is None else self.machine.remove

    def begin_round(self) -> None:
        """Form the group again: its policy does not see the first steps."""
        if self.machine is not None:
            self._collect()
            machine = self.machine
            self.machine = Splitting(machine.rules, machine.state, machine.num_quiet)

    def split(self, num_samples: int) -> Counts:
        """Shares of a step that is planned now."""
        if self._policy.splits_evenly:
            return split_evenly(num_samples, len(self._sizes))
        if self.machine is None:
            return scaled_to_step(num_samples, self._sizes)
        return self.machine.split(num_samples)

    def steps(
        self, sizes: Sequence[tuple[int, bool]], seconds_of: Callable[[Counts, bool], Times]
    ) -> Iterator[VirtualStep]:
        """Take the steps of one pass.

        Args:
            sizes: for each step its samples, and whether it is a training step.
            seconds_of: returns the seconds that each rank computes on its share, > 0 if it has samples.
                Called once for each step, in order, with the shares and whether it is a training step.
        """
        planned: Counts | None = None
        for number, (num_samples, training) in enumerate(sizes):
            shares = planned or self.split(num_samples)
            planned = None
            is_ahead = self.machine is None or not self.machine.at_once
            if is_ahead and number + 1 < len(sizes):
                planned = self.split(sizes[number + 1][0])
            seconds = seconds_of(shares, training)
            if training:
                self._measure(shares, seconds)
            yield VirtualStep(shares, training, seconds)

    def _measure(self, shares: Counts, seconds: Times) -> None:
        """Do what the ranks do when they meet at the end of a training step."""
        machine = self.machine
        if machine is None or self.is_steady:
            return
        observations = tuple(map(Observation, shares, seconds))
        self._collect()
        if machine.at_once:
            self._ask(StepMeasured(shares, observations))
            self._collect()
            machine.handle(Announced(machine.announcement))
        else:
            machine.handle(Announced(machine.announcement))
            self._ask(StepMeasured(shares, observations))

    def _ask(self, measured: StepMeasured) -> None:
        assert self.machine is not None
        for action in self.machine.handle(measured):
            if isinstance(action, AskPolicy):
                self._pending = action

    def _collect(self) -> None:
        """Let the policy answer."""
        if self._pending is None or self.machine is None:
            return
        ask, self._pending = self._pending, None
        before = self.machine.state.batch_sizes
        self.machine.handle(Decided(self._policy.decide(ask.state, ask.observations)))
        self._num_same = self._num_same + 1 if self.machine.state.batch_sizes == before else 0


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
