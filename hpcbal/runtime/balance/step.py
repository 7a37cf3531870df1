"""One step of a pass, as a rank of a trainer group sees and reports it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np

from hpcbal.dataplane.reader import Batch
from hpcbal.policies.batching import Observation
from hpcbal.policies.selection import StepShares
from hpcbal.telemetry.resources.resource_use import ResourceUse
from hpcbal.training.weights import Array


@dataclass(frozen=True, slots=True)
class Step:
    """A step, and this rank's share of it.

    Attributes:
        start, end: the whole step has positions of start..end-1; the next one begins at `end`.
        training: True for a training step, False for a validation step.
        num_samples_total: number of valid samples in the whole step.
        shares: each rank's share.
        batch: this rank's share; its memory is used again when the step has ended.
        preprocessing_s: seconds that this rank spent on making and augmenting its batch; 0 if preprocessors
            make all of it.
        is_overlapped: whether a rank makes its next batch while it computes on this one.
        planned: number of samples of each rank by which the step was split, if samples differ in size; the
            shares then hold other numbers, with as much work. None: those of the shares.
        slowest: work of the slowest rank, see `DealtStep`; 0 if samples do not differ in size.
        weight: what this rank's mean gradient counts in the step, 0..1; None: its share of the samples.
        may_lack: whether `num_samples_total` counts samples of other ranks that may turn out to be broken.
        augment_s: the part of `preprocessing_s` that was spent on `augment` of the DNN.
        error: why the batch cannot be trained on: `augment` of the DNN failed; None: it can.
        num_before: see `PlannedStep`.
    """

    start: int
    end: int
    training: bool
    num_samples_total: int
    shares: StepShares
    batch: Batch
    preprocessing_s: float = 0.0
    is_overlapped: bool = False
    planned: tuple[int, ...] | None = None
    slowest: float = 0.0
    weight: float | None = None
    may_lack: bool = False
    augment_s: float = 0.0
    error: Exception | None = None
    num_before: int = 0

    @property
    def num_planned(self) -> int:
        """Samples of the whole step, with the broken ones."""
        return sum(self.shares.counts)

    @property
    def work(self) -> float:
        """The work of this rank's batch, as a policy counts it: in samples of mean size."""
        return self.batch.work

    @property
    def counts(self) -> tuple[int, ...]:
        """Number of samples of each rank, as a policy decided it."""
        return self.shares.counts if self.planned is None else self.planned

    def worked_s(self, compute_s: float) -> float:
        """Seconds that a share of this size keeps the rank busy per step; balancing equalises them.

        If the rank makes its next batch while it computes, the longer of the two counts; otherwise their sum.

        Args:
            compute_s: seconds of computing on the step, without waiting for others.
        """
        if self.is_overlapped:
            return max(self.preprocessing_s, compute_s)
        return self.preprocessing_s + compute_s


class DeviceWatch(Protocol):
    """Measures how full the memory of this rank's accelerator is, per round; see `DeviceMemory`."""

    @property
    def needed(self) -> float:
        """Largest share needed since `begin`, or in earlier rounds as passed to `begin`."""

    def begin(self, needed: float) -> None:
        """Begin a new round: discard what was needed before.

        Args:
            needed: share that this rank needed in earlier rounds of the same group, see `needed`.
        """

    def read(self, num_samples: int) -> float | None:
        """The latest share in use, 0 to 1; None if it cannot be measured.

        Args:
            num_samples: number of samples in the batch just computed.
        """


class NoDevice(DeviceWatch):
    """Measures nothing, so nothing is ever needed."""

    needed = 0.0

    def begin(self, needed: float) -> None:
        """Do nothing: nothing was measured."""

    def read(self, num_samples: int) -> None:
        """Measure nothing."""


def _nothing() -> ResourceUse:
    return ResourceUse(None, None)


@dataclass(frozen=True, slots=True)
class WorkerWatch:
    """Measures a rank's resources; by default nothing.

    Attributes:
        host: measures CPU and memory, like `ResourceProbe.read`.
        device: measures the accelerator's memory.
    """

    host: Callable[[], ResourceUse] = field(default=_nothing)
    device: DeviceWatch = field(default_factory=NoDevice)


LEAST_PROCESSING_S = 1e-9
SAMPLES, WORK, SECONDS, CPU, MEMORY, DEVICE_MEMORY = range(6)
"""Indices of a rank's facts in its report."""
NUM_FACTS = DEVICE_MEMORY + 1
UNKNOWN = -1.0
"""Stands for a share that was not measured: the sum over ranks must stay a number."""


def report_of_rank(step: Step, compute_s: float, watch: WorkerWatch) -> Array:
    """The report of one rank, SAMPLES to DEVICE_MEMORY, shape (NUM_FACTS,).

    Args:
        step: the step that the rank has computed.
        compute_s: seconds of computing, without waiting for others.
        watch: measures the rank's own resources.
    """
    host, num_samples = watch.host(), len(step.batch.ids)
    if step.planned is not None and num_samples:  # policies then count samples of mean size
        num_samples = max(1, round(step.work))
    shares = (host.cpu_share, host.memory_share, watch.device.read(num_samples))
    return np.array(
        [
            num_samples,
            step.work,
            max(step.worked_s(compute_s), LEAST_PROCESSING_S) if num_samples else 0.0,
            *(UNKNOWN if share is None else share for share in shares),
        ],
        np.float64,
    )


def observations_of(reports: Array) -> tuple[Observation, ...]:
    """A policy's observations of a step, by rank.

    Args:
        reports: the ranks' reports, shape (ranks, NUM_FACTS).
    """
    return tuple(map(_observation, reports.tolist()))


def _observation(facts: list[float]) -> Observation:
    samples, work, seconds, *shares = facts
    cpu, memory, device = (None if share == UNKNOWN else share for share in shares)
    return Observation(round(samples), seconds, cpu, memory, device, work)
