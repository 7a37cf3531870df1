"""Alg. 1 of LB-BSP: batches in proportion to the workers' speeds, which are predicted from the last ones."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import ClassVar

import numpy as np
import numpy.typing as npt

from hpcbal.policies.batching.even import split_task_evenly
from hpcbal.policies.batching.guard import Guard, GuardState, hopeless_worker, largest_so_far, most_in_memory
from hpcbal.policies.batching.min_max import apportion
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
from hpcbal.policies.batching.time_curves import FloatArray, TimeCurves

HISTORY_ITERATIONS = 64  # whose speeds limit the next prediction


@dataclass(frozen=True, slots=True, eq=False)
class SpeedHistory:
    """The last iterations of a group's workers; column -1 is the newest.

    Attributes:
        speeds: samples/s in each iteration, > 0, shape (num_workers, n). A worker without samples in an
            iteration keeps its last speed; NaN if it never had a sample.
        cpu, memory: shares observed after each iteration, when the next one begins, shape (num_workers, n);
            NaN where they were not measured.
    """

    speeds: FloatArray
    cpu: FloatArray
    memory: FloatArray

    @classmethod
    def empty(cls, num_workers: int) -> SpeedHistory:
        """Before the first iteration."""
        return cls(*(np.empty((num_workers, 0)) for _ in range(3)))

    @property
    def num_iterations(self) -> int:
        """Number of iterations that are remembered."""
        return int(self.speeds.shape[1])

    def newest(self, num_iterations: int) -> SpeedHistory:
        """The last iterations alone; `num_iterations` >= 1."""
        return SpeedHistory(*(part[:, -num_iterations:] for part in (self.speeds, self.cpu, self.memory)))

    def with_observations(self, observations: Sequence[Observation]) -> SpeedHistory:
        """The history with one more iteration; at most `HISTORY_ITERATIONS` are kept."""
        last = self.speeds[:, -1] if self.num_iterations else np.full(len(observations), np.nan)
        speeds = [
            seen.work / seen.processing_s if seen.work else before
            for seen, before in zip(observations, last.tolist(), strict=True)
        ]
        return SpeedHistory(
            _appended(self.speeds, speeds),
            _appended(self.cpu, [_number(seen.cpu_share) for seen in observations]),
            _appended(self.memory, [_number(seen.memory_share) for seen in observations]),
        )


class SpeedPredictor(ABC):
    """Predicts speeds. A frozen value: its fields are settings and whatever was fitted beforehand."""

    @abstractmethod
    def predict(self, history: SpeedHistory) -> FloatArray:
        """Samples/s of each worker in the next iteration, shape (num_workers,).

        Called at the barrier while all workers wait, so it may take a few hundred microseconds at most.

        Args:
            history: of at least one iteration.

        Returns: speeds > 0; NaN for a worker that never had a sample.
        """


@dataclass(frozen=True, slots=True)
class Memoryless(SpeedPredictor):
    """Expects the next iteration to be like the last one.

    Source: [LBBSP] Sec. 3.2.2, Table 3.
    """

    def predict(self, history: SpeedHistory) -> FloatArray:
        return history.speeds[:, -1]


def _appended(window: FloatArray, newest: Sequence[float]) -> FloatArray:
    """The window with one more column; without its oldest one if it was full."""
    kept = window[:, -(HISTORY_ITERATIONS - 1) :]
    return np.column_stack([kept, np.array(newest, np.float64)])


def _number(share: float | None) -> float:
    return np.nan if share is None else share


def positive_speeds(predicted: FloatArray, history: SpeedHistory) -> FloatArray:
    """Predictions that a split can be based on, shape (num_workers,).

    Predictions are limited to between half the lowest and twice the highest speed remembered, so a wrong
    model cannot starve a worker or give it everything. A worker without a speed gets the mean of the others.
    """
    known = ~np.isnan(history.speeds)
    some = known.any(axis=1)
    least = np.where(known, history.speeds, np.inf).min(axis=1) / 2
    most = np.where(known, history.speeds, 0.0).max(axis=1) * 2
    newest = history.speeds[:, -1]
    finite = np.where(np.isfinite(predicted), predicted, newest)
    limited: npt.NDArray[np.float64] = np.where(some, np.clip(finite, least, most), 1.0)
    if some.any() and not some.all():
        limited[~some] = limited[some].mean()
    return limited


@dataclass(frozen=True, slots=True, eq=False)
class LbBspCpuState(BatchState):
    """The memory of Alg. 1.

    Attributes:
        history: the last iterations.
        largest: most samples that each worker has processed so far, or got at the start.
        hopeless: the worker without which the group is expected to be faster, or None.
        hopeless_iterations: number of decisions in a row that found this worker.
        guarded: what the guard remembers.
        speeds: predicted speed of each worker; empty at the start, and while limits of memory or the guard
            change the split.
    """

    history: SpeedHistory = field(default_factory=lambda: SpeedHistory.empty(0))
    largest: tuple[int, ...] = ()
    hopeless: int | None = None
    hopeless_iterations: int = 0
    guarded: GuardState = field(default_factory=lambda: GuardState((), (), 0.0))
    speeds: tuple[float, ...] = ()

    @property
    def weights(self) -> tuple[float, ...]:
        return self.speeds or tuple(map(float, self.batch_sizes))


@dataclass(frozen=True, slots=True)
class LbBspCpu(BatchingPolicy[LbBspCpuState]):
    """For workers whose time is proportional to their batch, on shared hosts where speeds change.

    Attributes:
        predictor: of the speeds. A policy with another predictor continues with the same state, so models
            can be refitted during training.
        offer_after: decisions in a row that must find a worker hopeless before it is offered for removal,
            >= 1, so short bursts of other load are ignored.
        removal_gain: share of the makespan that leaving workers out must save, 0..1.
        guard: limits what wrong predictions may cost; None: no limit, as in the paper.

    Source: [LBBSP] Alg. 1. Deviations: the workers' limits are kept. If the accelerators' memory is measured,
        no batch exceeds it, see `most_in_memory`. A worker whose smallest share takes too long, because part
        of its time does not shrink with the batch, is offered for removal, see `hopeless_worker`; the paper
        does so for accelerators only.
    """

    cadence: ClassVar[Cadence] = Cadence.EVERY_STEP
    takes_predictor: ClassVar[bool] = True
    offers_removal: ClassVar[bool] = True

    predictor: SpeedPredictor = field(default_factory=Memoryless)
    offer_after: int = 20
    removal_gain: float = 0.05
    guard: Guard | None = field(default_factory=Guard)

    def start(self, task: BatchTask) -> LbBspCpuState:
        even = split_task_evenly(task)
        guarded = (self.guard or Guard()).start(even)
        return LbBspCpuState(task, even, SpeedHistory.empty(task.num_workers), even, guarded=guarded)

    def decide(self, state: LbBspCpuState, observations: Sequence[Observation]) -> Decision[LbBspCpuState]:
        """The split of the next iteration; `remove` is a worker that is too slow even at its minimum."""
        check_observations(state, observations)
        task = state.task
        history = state.history.with_observations(observations)
        speeds = positive_speeds(self.predictor.predict(history), history)
        largest = largest_so_far(state.largest, observations)
        maxima = [
            max(now, most_in_memory(seen, processed, most))
            for now, seen, processed, most in zip(
                state.batch_sizes, observations, largest, task.maxima, strict=True
            )
        ]
        wanted = apportion(task.num_samples, speeds.tolist(), task.minima, maxima)
        state = replace(state, history=history, largest=largest)
        hopeless = self._hopeless(state, wanted, speeds, maxima, observations)
        same = state.hopeless_iterations + 1 if hopeless == state.hopeless else 1
        guarded, sizes = state.guarded, wanted
        if self.guard is not None:
            guarded, sizes = self.guard.admit(guarded, observations, wanted)
        is_free = sizes == wanted and not any(map(int.__ge__, wanted, maxima))
        state = replace(
            state,
            batch_sizes=sizes,
            guarded=guarded,
            hopeless=hopeless,
            hopeless_iterations=same,
            speeds=tuple(speeds.tolist()) if is_free else (),
        )
        return Decision(state, hopeless if same >= self.offer_after else None)

    def _hopeless(
        self,
        state: LbBspCpuState,
        wanted: tuple[int, ...],
        speeds: FloatArray,
        maxima: Sequence[int],
        observations: Sequence[Observation],
    ) -> int | None:
        """The worker to leave out, if any; unseen workers are not expected to take its samples."""
        if np.isnan(state.history.speeds[:, -1]).any():
            return None
        nothing = np.zeros_like(speeds)
        reachable = tuple(map(WorkerLimits, state.task.minima, maxima))
        return hopeless_worker(
            TimeCurves(nothing, nothing, 1.0 / speeds),
            wanted,
            state.task,
            BatchTask(state.task.num_samples, reachable),
            observations,
            state.largest,
            self.removal_gain,
            state.hopeless,
        )
