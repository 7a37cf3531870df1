"""Learn each worker's time curve online, and give it the share that the exact optimum wants."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import ClassVar

import numpy as np

from hpcbal.policies.batching.curve_learning import CurveMemory, learn
from hpcbal.policies.batching.curves import TimeCurves
from hpcbal.policies.batching.even import split_task_evenly
from hpcbal.policies.batching.guard import Guard, GuardState, Sizes
from hpcbal.policies.batching.hopeless import hopeless_worker
from hpcbal.policies.batching.memory_guard import largest_so_far, most_in_memory
from hpcbal.policies.batching.min_max import split_min_max
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


@dataclass(frozen=True, slots=True, eq=False)
class FittedState(BatchState):
    """What `Fitted` remembers.

    Attributes:
        memory: of the workers' iterations.
        largest: most samples that each worker has processed so far.
        hopeless: the worker without which the group is now expected to be faster, or None.
        hopeless_iterations: for how many decisions in a row it has been that one.
        guarded: what the guard remembers.
    """

    memory: CurveMemory = field(default_factory=lambda: CurveMemory.empty(0))
    largest: tuple[int, ...] = ()
    hopeless: int | None = None
    hopeless_iterations: int = 0
    guarded: GuardState = field(default_factory=lambda: GuardState((), (), 0.0))


@dataclass(frozen=True, slots=True)
class Fitted(BatchingPolicy[FittedState]):
    """Eq. 3, solved exactly for curves that are learnt while training.

    From a cold start the first iteration is even; the second is split by speed, which shows every worker at
    a second batch size; from then on slopes, launch costs and floors are told apart. A split is kept until
    another one is expected to be better by `least_gain`: what noise alone would gain is not worth a change.

    Attributes:
        least_gain: share of the makespan, >= 0.
        growth: a worker gets at most this many times the largest batch it ever processed, > 1, so that what
            was learnt is not stretched too far, nor memory all at once.
        offer_after: decisions in a row that must find a worker hopeless before it is offered for removal,
            >= 1: curves that are still being learnt may say so of any.
        removal_gain: share of the makespan that leaving workers out must save, 0..1: who is gone is not
            measured any more, so a small gain is not worth it.
        guard: limits what wrong curves may cost; None: nothing does.

    Source: [LBBSP] Eq. 3, with the curves of Sec. 3.3.1, which the paper takes to be too costly to profile.
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
        """As `BatchingPolicy.start`."""
        even = split_task_evenly(task)
        return FittedState(
            task,
            even,
            CurveMemory.empty(task.num_workers),
            largest=(0,) * task.num_workers,
            guarded=(self.guard or Guard()).start(even),
        )

    def decide(self, state: FittedState, observations: Sequence[Observation]) -> Decision[FittedState]:
        """As `BatchingPolicy.decide`; `remove` is a worker at its minimum that still holds up all others."""
        check_observations(state, observations)
        sizes = np.array([observation.num_samples for observation in observations], np.float64)
        times_s = np.array([observation.processing_s for observation in observations], np.float64)
        memory = learn(state.memory, sizes, times_s)
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
        state = replace(state, batch_sizes=split, guarded=guarded)
        return Decision(state, hopeless if same >= self.offer_after else None)

    def _gains(self, curves: TimeCurves, before: Sizes, sizes: Sizes) -> bool:
        """Whether a split is expected to be worth a change from the one wanted before."""
        now_s = max(curves.makespan(before), 1e-300)
        return 1.0 - curves.makespan(sizes) / now_s > self.least_gain

    def _leads_on(self, curves: TimeCurves, state: FittedState, best: Sizes) -> bool:
        """Whether a split that gains nothing yet is a step to one that does.

        Of two equal stragglers one may give a sample to a leader that is allowed a single one more: the other
        one still holds up the group, until the leader may have its sample too.
        """
        if all(size <= largest for size, largest in zip(best, state.largest, strict=True)):
            return False
        goal = split_min_max(curves, state.task)
        steps = zip(state.largest, best, goal, strict=True)
        return any(largest < size <= most for largest, size, most in steps) and self._gains(
            curves, state.guarded.wanted, goal
        )

    def _reachable(self, state: FittedState, observations: Sequence[Observation]) -> BatchTask:
        """The task with maxima that memory and experience allow for the next iteration."""
        limits = []
        for i, observation in enumerate(observations):
            least, most = state.task.minima[i], state.task.maxima[i]
            now = max(state.batch_sizes[i], least)
            learnt = max(int(self.growth * state.largest[i]), 2)
            allowed = max(now, most_in_memory(observation, state.largest[i], learnt))
            limits.append(WorkerLimits(least, min(most, allowed)))
        return BatchTask(state.task.num_samples, tuple(limits))
