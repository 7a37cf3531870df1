"""Alg. 2 of LB-BSP: move samples from the straggler to the leader until they change places."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from operator import gt
from typing import ClassVar

from hpcbal.errors import PolicyError
from hpcbal.policies.batching.even import split_task_evenly
from hpcbal.policies.batching.guard import can_leave, largest_so_far, surely_in_memory
from hpcbal.policies.batching.min_max import scale_shares
from hpcbal.policies.batching.task import (
    BatchingPolicy,
    BatchState,
    BatchTask,
    Decision,
    Observation,
    check_observations,
)

Times = tuple[float, ...]


@dataclass(frozen=True, slots=True)
class PhaseSettings:
    """One phase of Alg. 2.

    Attributes:
        step_samples: samples moved at once, >= 1.
        window_iterations: iterations for which a pair must have kept its order before samples move, >= 1.
    """

    step_samples: int
    window_iterations: int

    def __post_init__(self) -> None:
        if self.step_samples < 1 or self.window_iterations < 1:
            raise PolicyError(
                f"phase of lb-bsp-gpu: got a step of {self.step_samples} samples and a window of "
                f"{self.window_iterations} iterations, allowed: 1 or more of each"
            )


@dataclass(frozen=True, slots=True)
class LbBspGpuState(BatchState):
    """The memory of Alg. 2.

    Attributes:
        fine_tunes: which of the two phases it is in.
        recent_s: processing times of the last iterations, oldest first, at most a fine-tune window.
        was_slower: row i, column j: whether worker i was slower than worker j in any iteration so far.
        largest: most samples that each worker has processed so far, or got at the start.
    """

    fine_tunes: bool = False
    recent_s: tuple[Times, ...] = ()
    was_slower: tuple[tuple[bool, ...], ...] = ()
    largest: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class LbBspGpu(BatchingPolicy[LbBspGpuState]):
    """The drop-in algorithm for accelerators: it needs times only, no model of the workers.

    It assumes steady speeds. Unlike `fitted` it has no guard (see `Guard`) against loads that move on before
    it has reacted. A worker that got samples while it was fast and then becomes the slowest holds up the
    group until the samples have moved back: during fine-tuning at most one sample in 20 iterations. It
    follows changes just as slowly, and handles several stragglers one at a time. If speeds change more often
    than every few hundred iterations, it can cost more than even shares.

    Attributes:
        fast_approach, fine_tune: settings of the two phases.
        most_missing: share of the samples of an iteration, and of each worker in it, that may be missing
            because they are broken, 0 <= most_missing < 1.

    Raises: PolicyError: a setting is out of range.
    Source: [LBBSP] Sec. 3.3.2, Alg. 2. Deviations:
        - Line 5 gives up on a straggler with no more samples than the step. Here that first ends the
          fast-approach phase: with steps of 5, a worker whose best share is 3 would be removed, and a group
          whose even share is 5 would never be balanced. With steps of 1 the straggler is offered for removal
          if three conditions hold. It was the slowest for a whole window, so one slow iteration is not
          enough. The others can take its samples and are faster with them, even if their time grew in
          proportion. And each of them can hold an even share, see `can_leave`.
        - Workers' minima and maxima are kept: the step is cut to them. A worker at its maximum does not
          lead, and neither does one without free memory.
        - If memory is measured, the step is also cut to what the leader's memory surely holds, see
          `surely_in_memory`. The paper moves 5 samples to a worker that is 94 % full.
        - A worker with less than 5 % of its memory free still leads up to the largest batch that it has
          processed. TensorFlow gives no memory back, so a worker that gives samples away would stay full
          and never get them back.
        - If samples were broken, times are scaled to the workers' shares. A worker that lacks more than
          `most_missing` keeps its last time. Iterations that were meant to hold another number of samples
          than the global batch (the last one of a pass) are skipped.
    """

    offers_removal: ClassVar[bool] = True

    fast_approach: PhaseSettings = PhaseSettings(5, 5)
    fine_tune: PhaseSettings = PhaseSettings(1, 20)
    most_missing: float = 0.25

    def __post_init__(self) -> None:
        if not 0.0 <= self.most_missing < 1.0:
            raise PolicyError(
                f"lb-bsp-gpu: most_missing: got {self.most_missing!r}, allowed: 0 <= most_missing < 1"
            )

    def start(self, task: BatchTask) -> LbBspGpuState:
        never = ((False,) * task.num_workers,) * task.num_workers
        even = split_task_evenly(task)
        return LbBspGpuState(task, even, was_slower=never, largest=even)

    def decide(self, state: LbBspGpuState, observations: Sequence[Observation]) -> Decision[LbBspGpuState]:
        """The split of the next iteration; `remove` is a straggler that has no samples left to give."""
        check_observations(state, observations)
        state = replace(state, largest=largest_so_far(state.largest, observations))
        given, times = self._full_times(state, observations)
        if not times:
            return Decision(state)
        longest = max(self.fast_approach.window_iterations, self.fine_tune.window_iterations)
        recent = (*state.recent_s, times)[-longest:]
        slower = tuple(
            tuple(was or own > other for was, other in zip(row, times, strict=True))
            for row, own in zip(state.was_slower, times, strict=True)
        )
        leader = self._leader(state, observations, times)
        straggler = max(range(len(times)), key=lambda i: (times[i], -i))
        sizes, fine_tunes, remove = state.batch_sizes, state.fine_tunes, None
        phase = self.fine_tune if fine_tunes else self.fast_approach
        window = recent[-phase.window_iterations :]
        is_full = len(window) == phase.window_iterations
        if sizes[straggler] <= phase.step_samples:
            always = is_full and len(times) > 1 and all(t[straggler] == max(t) for t in window)
            is_useless = (
                fine_tunes
                and always
                and can_leave((straggler,), state.task, observations, state.largest)
                and _is_faster_without(straggler, _most(state, observations), given, times)
            )
            remove = straggler if is_useless else None
            fine_tunes = True
        elif leader is not None and leader != straggler:
            if is_full and all(t[leader] < t[straggler] for t in window):
                most = _most(state, observations)[leader]
                sizes = _moved(state, leader, most, straggler, phase.step_samples)
            elif slower[leader][straggler]:
                fine_tunes = True
        state = replace(state, batch_sizes=sizes, fine_tunes=fine_tunes, recent_s=recent, was_slower=slower)
        return Decision(state, remove)

    def _full_times(
        self, state: LbBspGpuState, observations: Sequence[Observation]
    ) -> tuple[tuple[int, ...], Times]:
        """Each worker's share in this iteration and its time for it; nothing if the step was smaller."""
        seen = tuple(observation.num_samples for observation in observations)
        times = tuple(observation.processing_s for observation in observations)
        if sum(seen) == state.task.num_samples:
            return seen, times
        given, enough = state.batch_sizes, 1.0 - self.most_missing
        is_smaller = sum(seen) < enough * state.task.num_samples or any(map(gt, seen, given))
        if is_smaller or seen == scale_shares(sum(seen), given):  # split like the last step of a pass
            return (), ()
        full_s = []
        for i, (time_s, valid, share) in enumerate(zip(times, seen, given, strict=True)):
            if valid >= enough * share:
                full_s.append(time_s * share / valid if valid else time_s)
            elif state.recent_s:
                full_s.append(state.recent_s[-1][i])
            else:
                return (), ()
        return given, tuple(full_s)

    @staticmethod
    def _leader(state: LbBspGpuState, observations: Sequence[Observation], times: Times) -> int | None:
        """The fastest worker that can take more samples; None if none can."""
        most = _most(state, observations)
        able = [i for i in range(len(times)) if state.batch_sizes[i] < most[i]]
        return min(able, key=lambda i: (times[i], i), default=None)


def _most(state: LbBspGpuState, observations: Sequence[Observation]) -> list[int]:
    """The most samples that each worker may get."""
    return [
        surely_in_memory(seen, largest, most)
        for seen, largest, most in zip(observations, state.largest, state.task.maxima, strict=True)
    ]


def _moved(
    state: LbBspGpuState, leader: int, most: int, straggler: int, step_samples: int
) -> tuple[int, ...]:
    """The batch sizes after moving at most a step from the straggler to the leader, which may get `most`."""
    sizes = list(state.batch_sizes)
    spare = sizes[straggler] - state.task.minima[straggler]
    step = min(step_samples, spare, most - sizes[leader])
    sizes[leader] += step
    sizes[straggler] -= step
    return tuple(sizes)


def _is_faster_without(straggler: int, most: Sequence[int], given: Sequence[int], times_s: Times) -> bool:
    """Whether the others would finish before the straggler if they had its samples too, up to `most` each.

    Another sample is assumed to cost a worker as much as the mean of those that it has. With launch costs
    that is an overestimate, so a removed worker was not worth waiting for. The time of a worker without
    samples is unknown, so such a worker is not expected to take one.
    """
    sizes = list(given)
    known = [i for i, size in enumerate(sizes) if size and i != straggler]
    per_sample_s = {i: times_s[i] / sizes[i] for i in known}
    for _ in range(sizes[straggler]):
        able = [i for i in known if sizes[i] < most[i]]
        if not able:
            return False
        best = min(able, key=lambda i: (per_sample_s[i] * (sizes[i] + 1), i))
        sizes[best] += 1
        if per_sample_s[best] * sizes[best] >= times_s[straggler]:
            return False
    return True
