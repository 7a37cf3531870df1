"""The values of batching policies: task, observations, state, decision; and their interface."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from typing import ClassVar, Generic, TypeVar

from hpcbal.errors import PolicyError

# A worker with less of its memory free than this share gets no more samples ([LBBSP] Sec. 3.3.2).
LEAST_FREE_MEMORY_SHARE = 0.05


@dataclass(frozen=True, slots=True)
class WorkerLimits:
    """How many samples of an iteration one worker may get.

    Attributes:
        min_samples: >= 0; with 1 no worker is idle, and all workers stay measured.
        max_samples: what its memory holds, >= min_samples; None: no limit.

    Raises: PolicyError: the minimum is negative or above the maximum.
    """

    min_samples: int = 1
    max_samples: int | None = None

    def __post_init__(self) -> None:
        if self.min_samples < 0 or (self.max_samples is not None and self.max_samples < self.min_samples):
            raise PolicyError(
                f"limits of a worker: got {self.min_samples} to {self.max_samples} samples, "
                "allowed: 0 <= minimum <= maximum"
            )


@dataclass(frozen=True, slots=True)
class BatchTask:
    """The global batch, and the workers over which it is split, with their limits.

    Attributes:
        num_samples: of the global batch, >= 1.
        limits: one per worker, in the group's rank order; at least one.
        work: total work of the samples of a batch, finite and > 0, in any unit; samples of unequal size have
            different amounts. By default the number of samples.

    Raises: PolicyError: no split keeps the limits; the message says by how much. Or `work` is out of range.
    """

    num_samples: int
    limits: tuple[WorkerLimits, ...]
    work: float = -1.0

    def __post_init__(self) -> None:
        if self.work == -1.0:
            object.__setattr__(self, "work", float(self.num_samples))
        if not (math.isfinite(self.work) and (self.work > 0.0 or self.num_samples < 1)):
            raise PolicyError(f"work of a batch: got {self.work!r}, allowed: a finite number above 0")
        if self.num_samples < 1 or not self.limits:
            raise PolicyError(
                f"cannot balance {self.num_samples} samples over {len(self.limits)} workers; "
                "allowed: 1 or more samples, 1 or more workers"
            )
        least, most = sum(self.minima), sum(self.maxima)
        if not least <= self.num_samples <= most:
            raise PolicyError(
                f"cannot balance {self.num_samples} samples over {len(self.limits)} workers that take at "
                f"least {least} and at most {most} together; change the batch size, the limits or the workers"
            )

    @classmethod
    def uniform(cls, num_samples: int, num_workers: int, limits: WorkerLimits | None = None) -> BatchTask:
        """The same limits for all workers: those given, or at least 1 sample if there are enough samples."""
        each = limits or WorkerLimits(min_samples=int(num_samples >= num_workers))
        return cls(num_samples, (each,) * num_workers)

    @property
    def num_workers(self) -> int:
        return len(self.limits)

    @property
    def minima(self) -> tuple[int, ...]:
        """Fewest samples of each worker."""
        return tuple(limits.min_samples for limits in self.limits)

    @property
    def maxima(self) -> tuple[int, ...]:
        """Most samples of each worker; the whole batch if there is no limit."""
        return tuple(
            self.num_samples if limits.max_samples is None else min(limits.max_samples, self.num_samples)
            for limits in self.limits
        )


@dataclass(frozen=True, slots=True)
class Observation:
    """Measurements of one worker in the last iteration, and its resources before the next one.

    Attributes:
        num_samples: samples that it processed, >= 0.
        processing_s: seconds until it arrived at the collective, without waiting for others; or the seconds
            for which its share keeps it busy in each step, if these are more. Finite and > 0, or 0 without
            samples.
        cpu_share: share of its host's CPU that is free for it, or that it uses (always the same of the two),
            0 to 1; None: not measured.
        memory_share: share of its host's memory in use, 0 to 1; None: not measured.
        device_memory_share: share of its accelerator's memory in use, 0 to 1; None: not measured.
        work: total work of its samples in the unit of `BatchTask.work`, finite, >= 0. By default the number
            of samples.

    Raises: PolicyError: a value is out of range.
    """

    num_samples: int
    processing_s: float
    cpu_share: float | None = None
    memory_share: float | None = None
    device_memory_share: float | None = None
    work: float = -1.0

    def __post_init__(self) -> None:
        if self.work == -1.0:
            object.__setattr__(self, "work", float(self.num_samples))
        positive = self.processing_s > 0 or (self.num_samples == 0 and self.processing_s == 0)
        if self.num_samples < 0 or not (math.isfinite(self.processing_s) and positive):
            raise PolicyError(
                f"observation of a worker: got {self.num_samples} samples in {self.processing_s!r} s, "
                "allowed: 0 or more samples in a finite time above 0"
            )
        if not (math.isfinite(self.work) and self.work >= 0.0):
            raise PolicyError(f"work of a worker: got {self.work!r}, allowed: a finite number, 0 or more")
        for name in ("cpu_share", "memory_share", "device_memory_share"):
            share = getattr(self, name)
            if share is not None and not 0.0 <= share <= 1.0:
                raise PolicyError(f"observation of a worker: {name}: got {share!r}, allowed: 0 to 1, or None")

    @property
    def memory_is_full(self) -> bool:
        """Whether another sample could exceed the accelerator's memory."""
        used = self.device_memory_share
        return used is not None and used > 1.0 - LEAST_FREE_MEMORY_SHARE


@dataclass(frozen=True, slots=True)
class BatchState:
    """The memory of a policy between iterations; policies that learn extend it.

    Attributes:
        task: the batch that is split.
        batch_sizes: samples of each worker in the next iteration.
    """

    task: BatchTask
    batch_sizes: tuple[int, ...]

    @property
    def weights(self) -> tuple[float, ...]:
        """The part of a step's work that each worker should get; only their proportions count.

        Samples of unequal size are dealt out by these numbers. By default they are the batch sizes.
        """
        return tuple(map(float, self.batch_sizes))


State = TypeVar("State", bound=BatchState)


@dataclass(frozen=True, slots=True)
class Decision(Generic[State]):
    """The answer of a policy.

    Attributes:
        state: to pass to the next decision.
        remove: index of a worker without which the group would be faster, or None. It still gets its
            samples: the scheduler decides whether to form a new group without it.
    """

    state: State
    remove: int | None = None

    @property
    def batch_sizes(self) -> tuple[int, ...]:
        """Samples of each worker in the next iteration; they sum to the global batch, within the limits."""
        return self.state.batch_sizes


class Cadence(Enum):
    """When a decision is needed, as a policy declares it.

    Members:
        NEVER: the first split is kept; nothing is measured.
        BACKGROUND: decisions are made while the next step runs, and act some steps later.
        UNTIL_SETTLED: each step waits for the decision on the step before while decisions move many samples;
            afterwards like BACKGROUND.
        EVERY_STEP: each step waits for the decision on the step before.
    """

    NEVER = "never"
    BACKGROUND = "background"
    UNTIL_SETTLED = "until settled"
    EVERY_STEP = "every step"

    def waits(self, is_settled: bool) -> bool:
        """Whether a step now waits for the decision on the step before.

        Args:
            is_settled: whether the last decisions moved few samples.
        """
        return self is Cadence.EVERY_STEP or (self is Cadence.UNTIL_SETTLED and not is_settled)


class BatchingPolicy(ABC, Generic[State]):
    """Adapts every worker's share of a fixed global batch at iteration boundaries.

    A policy is a frozen value: its fields are its settings. What it learns is in the state that `decide`
    takes and returns. Observations may lag some iterations behind the state (if decisions are made in the
    background), and may belong to a step with fewer samples than the global batch (the last one of a pass).

    Each class declares what it needs from its caller, so callers do not compare names.

    Attributes:
        cadence: when its decisions are needed.
        learns_from_any_split: whether it can use the times of a step that ran under an older split than its
            last decision. Otherwise it only sees steps that ran under its last decision.
        splits_evenly: whether every split is even, whatever the limits of memory.
        takes_shares: whether it has a field `shares` that the user sets.
        takes_predictor: whether it has a field `predictor` that the user chooses.
        offers_removal: whether it may find a group faster without one of its workers.

    Source: [LBBSP] Eq. 3 and Alg. 3.
    """

    cadence: ClassVar[Cadence] = Cadence.BACKGROUND
    learns_from_any_split: ClassVar[bool] = False
    splits_evenly: ClassVar[bool] = False
    takes_shares: ClassVar[bool] = False
    takes_predictor: ClassVar[bool] = False
    offers_removal: ClassVar[bool] = False

    @property
    def decides(self) -> bool:
        """Whether splits change, so steps must be measured."""
        return self.cadence is not Cadence.NEVER

    @abstractmethod
    def start(self, task: BatchTask) -> State:
        """The state before the first iteration; its `batch_sizes` are as even as the limits allow."""

    @abstractmethod
    def decide(self, state: State, observations: Sequence[Observation]) -> Decision[State]:
        """The split of the next iteration.

        Args:
            state: of the last decision.
            observations: one per worker, in the task's order.

        Raises: PolicyError: the number of observations is not the number of workers.
        """


def check_observations(state: BatchState, observations: Sequence[Observation]) -> None:
    """Raises: PolicyError: there is not exactly one observation per worker."""
    if len(observations) != state.task.num_workers:
        raise PolicyError(
            f"got {len(observations)} observations of {state.task.num_workers} workers; "
            "give one per worker, in the group's rank order"
        )
