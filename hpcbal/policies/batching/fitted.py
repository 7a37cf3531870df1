"""Learn each worker's time curve during training, and split batches optimally for these curves."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import ClassVar

import numpy as np

from hpcbal.policies.batching.even import split_task_evenly
from hpcbal.policies.batching.guard import (
    Guard,
    GuardState,
    Sizes,
    hopeless_worker,
    largest_so_far,
    most_in_memory,
)
from hpcbal.policies.batching.min_max import level_work, split_min_max
from hpcbal.policies.batching.task import (
    BatchingPolicy,
    BatchState,
    BatchTask,
    Cadence,
    Decision,
    Observation,
    WorkerLimits,
    check_observations,
)
from hpcbal.policies.batching.time_curves import CurveMemory, TimeCurves, learn


@dataclass(frozen=True, slots=True, eq=False)
class FittedState(BatchState):
    """The memory of `Fitted`.

    Attributes:
        memory: of the workers' iterations.
        largest: most samples that each worker has processed so far.
        hopeless: the worker without which the group is expected to be faster, or None.
        hopeless_iterations: number of decisions in a row that found this worker.
        guarded: what the guard remembers.
        level: work of each worker with which all finish at the same time; empty until the curves are known,
            and while the guard limits the split.
    """

    memory: CurveMemory = field(default_factory=lambda: CurveMemory.empty(0))
    largest: tuple[int, ...] = ()
    hopeless: int | None = None
    hopeless_iterations: int = 0
    guarded: GuardState = field(default_factory=lambda: GuardState((), (), 0.0))
    level: tuple[float, ...] = ()

    @property
    def weights(self) -> tuple[float, ...]:
        return self.level or tuple(map(float, self.batch_sizes))


@dataclass(frozen=True, slots=True)
class Fitted(BatchingPolicy[FittedState]):
    """Solves Eq. 3 exactly for curves that are learnt during training.

    From a cold start the first iteration is even. The second one is split by speed, so every worker is seen
    at a second batch size; from then on slopes, launch costs and floors can be distinguished. A split is kept
    until another one is expected to be better by `least_gain`, because smaller gains may be noise.

    Attributes:
        least_gain: share of the makespan, >= 0.
        growth: a worker gets at most this many times the largest batch that it ever processed, > 1, so
            curves are not extrapolated far and memory fills gradually.
        offer_after: decisions in a row that must find a worker hopeless before it is offered for removal,
            >= 1, because curves that are still being learnt can be wrong about any worker.
        removal_gain: share of the makespan that leaving workers out must save, 0..1. A removed worker is no
            longer measured, so small gains are not worth a removal.
        guard: limits what wrong curves may cost; None: no limit.

    Source: [LBBSP] Eq. 3, with the curves of Sec. 3.3.1, which the paper considers too costly to profile.
    """

    cadence: ClassVar[Cadence] = Cadence.UNTIL_SETTLED
    learns_from_any_split: ClassVar[bool] = True
    offers_removal: ClassVar[bool] = True

    least_gain: float = 0.005
    growth: float = 2.0
    offer_after: int = 20
    removal_gain: float = 0.05
    guard: Guard | None = field(default_factory=Guard)

    def start(self, task: BatchTask) -> FittedState:
        even = split_task_evenly(task)
        return FittedState(
            task,
            even,
            CurveMemory.empty(task.num_workers),
            largest=(0,) * task.num_workers,
            guarded=(self.guard or Guard()).start(even),
        )

    def decide(self, state: FittedState, observations: Sequence[Observation]) -> Decision[FittedState]:
        """The split of the next iteration; `remove` is a worker that is too slow even at its minimum."""
        check_observations(state, observations)
        work = np.array([observation.work for observation in observations], np.float64)
        times_s = np.array([observation.processing_s for observation in observations], np.float64)
        memory = learn(state.memory, work, times_s)
        state = replace(state, memory=memory, largest=largest_so_far(state.largest, observations))
        if not memory.is_known:
            return Decision(state)
        curves = memory.fitted.curves
        task = self._reachable(state, observations)
        best = split_min_max(curves, task)
        wanted = state.guarded.wanted
        fits = all(size <= most for size, most in zip(wanted, task.maxima, strict=True))
        if not fits or self._gains(curves, wanted, best) or self._leads_on(curves, state, best):
            wanted = best
        hopeless = hopeless_worker(
            curves, wanted, state.task, task, observations, state.largest, self.removal_gain, state.hopeless
        )
        same = state.hopeless_iterations + 1 if hopeless == state.hopeless else 1
        state = replace(state, hopeless=hopeless, hopeless_iterations=same)
        if self.guard is None:
            guarded, split = replace(state.guarded, wanted=wanted), wanted
        else:
            guarded, split = self.guard.admit(state.guarded, observations, wanted, curves)
        level = tuple(level_work(curves, task).tolist()) if split == wanted else ()
        state = replace(state, batch_sizes=split, guarded=guarded, level=level)
        return Decision(state, hopeless if same >= self.offer_after else None)

    def _gains(self, curves: TimeCurves, before: Sizes, sizes: Sizes) -> bool:
        """Whether a split is expected to be better enough than the previously wanted one."""
        now_s = max(curves.makespan(before), 1e-300)
        return 1.0 - curves.makespan(sizes) / now_s > self.least_gain

    def _leads_on(self, curves: TimeCurves, state: FittedState, best: Sizes) -> bool:
        """Whether a split that gains nothing yet is a step towards one that does.

        Example: two workers are equally slow, and the leader may take only one sample more. After it took
        that of the first, the second still holds up the group, until the leader may take its sample too.
        """
        if all(size <= largest for size, largest in zip(best, state.largest, strict=True)):
            return False
        goal = split_min_max(curves, state.task)
        steps = zip(state.largest, best, goal, strict=True)
        return any(largest < size <= most for largest, size, most in steps) and self._gains(
            curves, state.guarded.wanted, goal
        )

    def _reachable(self, state: FittedState, observations: Sequence[Observation]) -> BatchTask:
        """The task, limited to what memory and `growth` allow in the next iteration."""
        limits = []
        for i, observation in enumerate(observations):
            least, most = state.task.minima[i], state.task.maxima[i]
            now = max(state.batch_sizes[i], least)
            learnt = max(int(self.growth * state.largest[i]), 2)
            allowed = max(now, most_in_memory(observation, state.largest[i], learnt))
            limits.append(WorkerLimits(least, min(most, allowed)))
        return BatchTask(state.task.num_samples, tuple(limits))
