"""Alg. 1 of LB-BSP: batches in proportion to the speeds that the workers are predicted to have."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import ClassVar

from hpcbal.policies.batching.even import split_task_evenly
from hpcbal.policies.batching.memory_guard import largest_so_far, most_in_memory
from hpcbal.policies.batching.rounding import apportion
from hpcbal.policies.batching.speed import Ema, SpeedHistory, SpeedPredictor, positive_speeds
from hpcbal.policies.batching.task import (
    BatchingPolicy,
    BatchState,
    BatchTask,
    Cadence,
    Decision,
    Observation,
    check_observations,
)


@dataclass(frozen=True, slots=True, eq=False)
class LbBspCpuState(BatchState):
    """What Alg. 1 remembers.

    Attributes:
        history: the last iterations.
        largest: most samples that each worker has processed so far, or was given to begin with.
    """

    history: SpeedHistory = field(default_factory=lambda: SpeedHistory.empty(0))
    largest: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class LbBspCpu(BatchingPolicy[LbBspCpuState]):
    """For workers whose time is proportional to their batch, at a speed that changes with what they share.

    Attributes:
        predictor: one of `PREDICTORS`, or a model that `hpcbal.speed_models` has fitted. A policy with
            another predictor goes on with the same state, so models can be refitted while training runs.

    Source: [LBBSP] Alg. 1. Deviation: the workers' limits are kept, and where the accelerators' memory is
        measured, no batch outgrows it, see `most_in_memory`.
    """

    cadence: ClassVar[Cadence] = Cadence.EVERY_STEP
    takes_predictor: ClassVar[bool] = True

    predictor: SpeedPredictor = field(default_factory=Ema)

    def start(self, task: BatchTask) -> LbBspCpuState:
        """As `BatchingPolicy.start`."""
        even = split_task_evenly(task)
        return LbBspCpuState(task, even, SpeedHistory.empty(task.num_workers), even)

    def decide(self, state: LbBspCpuState, observations: Sequence[Observation]) -> Decision[LbBspCpuState]:
        """As `BatchingPolicy.decide`; never offers a worker for removal."""
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
        sizes = apportion(task.num_samples, speeds.tolist(), task.minima, maxima)
        return Decision(LbBspCpuState(task, sizes, history, largest))
