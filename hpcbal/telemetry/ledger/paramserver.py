"""Lines about a parameter-server job: its roles, its epochs, its reconfigurations, its end."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from hpcbal.telemetry.ledger.line import Facts, Line, Number


@dataclass(frozen=True, slots=True)
class RolesAssignedLine(Line):
    """Written at every start: what each executor does first.

    Attributes:
        roles: role of each executor, in order of rank from 1: `worker`, `server`, `both` or `standby`.
        data_blocks: number of blocks of samples at each executor.
        parameter_blocks: number of blocks of parameters at each executor.
        num_samples: number of samples of the dataset.
        parameter_bytes: size of all parameters.
        steps_per_epoch: number of steps in an epoch; null with `consistency: async`.
    """

    event: ClassVar[str] = "roles-assigned"
    roles: tuple[str, ...]
    data_blocks: tuple[int, ...]
    parameter_blocks: tuple[int, ...]
    num_samples: int
    parameter_bytes: int
    steps_per_epoch: int | None = None


@dataclass(frozen=True, slots=True)
class ThroughputForecastLine(Line):
    """Written at the start of an asynchronous job whose operations were profiled.

    Attributes:
        job: name of the job.
        num_workers: number of workers at the start.
        num_servers: number of servers at the start.
        samples_per_s: forecast for all workers together.
        low: lower end of the range in which nine of ten runs are expected, if the forecast's model is right.
        high: its upper end.
    """

    event: ClassVar[str] = "throughput-forecast"
    job: str
    num_workers: int
    num_servers: int
    samples_per_s: Number
    low: Number
    high: Number


@dataclass(frozen=True, slots=True)
class WorkerFacts(Facts):
    """What one worker did in an epoch.

    Attributes:
        executor: its rank.
        turns: number of turns.
        samples: number of samples.
        compute_s: time in the app's code.
        pull_s: time waiting for parameters.
        push_s: time from sending updates until they were applied; overlaps with the next turn.
        num_bytes: pulled and pushed; 0 in ledgers of earlier versions.
    """

    executor: int
    turns: int
    samples: int
    compute_s: Number
    pull_s: Number
    push_s: Number
    num_bytes: int = 0


@dataclass(frozen=True, slots=True)
class JobEpochLine(Line):
    """Written at the end of each epoch of a parameter-server job.

    Attributes:
        job: name of the job.
        epoch: the epoch, from 1.
        seconds: wall time of the epoch, with its objective.
        metrics: metrics of the app; empty if no objective was computed; null for a value that is not finite.
        workers: what each worker did.
    """

    event: ClassVar[str] = "job-epoch"
    job: str
    epoch: int
    seconds: Number
    metrics: Mapping[str, float | None]
    workers: tuple[WorkerFacts, ...] = ()


@dataclass(frozen=True, slots=True)
class ReconfiguredLine(Line):
    """Written when a reconfiguration is complete.

    Attributes:
        job: name of the job.
        why: what caused it; text for users.
        roles: role of each executor after it.
        data_blocks_moved: number of blocks of samples that moved.
        parameter_blocks_moved: number of blocks of parameters that moved.
        seconds: time from the decision to the last move.
        predicted_gain: predicted saving, as a share of the epoch time; null if it was not a matter of gain.
    """

    event: ClassVar[str] = "reconfigured"
    job: str
    why: str
    roles: tuple[str, ...]
    data_blocks_moved: int
    parameter_blocks_moved: int
    seconds: Number
    predicted_gain: float | None = None


@dataclass(frozen=True, slots=True)
class ExecutorsChangedLine(Line):
    """Written when the job has been given executors, or some were taken back.

    Attributes:
        job: name of the job.
        executors: ranks that the job may use from now on.
        source: what decided it: `executors` (the file) or `executors.schedule`.
    """

    event: ClassVar[str] = "executors-changed"
    job: str
    executors: tuple[int, ...]
    source: str


@dataclass(frozen=True, slots=True)
class JobSavedLine(Line):
    """Written when a checkpoint of a parameter-server job is complete on disk.

    Attributes:
        job: name of the job.
        epoch: number of completed epochs.
        step: number of completed steps since the start of the job; with `consistency: async`, of epochs.
        seconds: time for which the workers could not compute.
        wall_s: time of the job until now, over all starts, without what was lost after checkpoints; null: not
            recorded.
        used_s: the same in executor-seconds; null: not recorded.
    """

    event: ClassVar[str] = "job-saved"
    job: str
    epoch: int
    step: int
    seconds: Number
    wall_s: float | None = None
    used_s: float | None = None

    def reached(self) -> tuple[str, object]:
        """Return the position of the job."""
        return self.job, (self.epoch, self.step)


@dataclass(frozen=True, slots=True)
class JobDoneLine(Line):
    """Written when a parameter-server job has converged or reached its last epoch.

    Attributes:
        job: name of the job.
        epochs: number of epochs.
        detail: the stop rule that applied; text for users.
    """

    event: ClassVar[str] = "job-done"
    job: str
    epochs: int
    detail: str


@dataclass(frozen=True, slots=True)
class JobFailedLine(Line):
    """Written when a parameter-server job has failed.

    Attributes:
        job: name of the job.
        epochs: number of completed epochs.
        cause: kind of failure, one word.
        detail: what happened; text for users.
    """

    event: ClassVar[str] = "job-failed"
    job: str
    epochs: int
    cause: str
    detail: str
