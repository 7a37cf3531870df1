"""Lines about one DNN: its rates, its checkpoints, what became of it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from hpcbal.telemetry.ledger.line import Line


@dataclass(frozen=True, slots=True)
class RateMeasuredLine(Line):
    """Written when a profiling run has ended.

    Attributes:
        dnn: which one was timed.
        num_gpus: size of its group.
        samples_per_s: the rate.
    """

    event: ClassVar[str] = "rate-measured"
    dnn: str
    num_gpus: int
    samples_per_s: float


@dataclass(frozen=True, slots=True)
class CheckpointWrittenLine(Line):
    """Written when a checkpoint is complete on disk.

    Attributes:
        dnn: which one.
        epoch: epochs completed.
        pass_index: pass of the stream that the DNN is in.
        offset: next sample of that pass.
        seconds: how long the write took.
        held_s: how long it kept the group from training.
    """

    event: ClassVar[str] = "checkpoint-written"
    dnn: str
    epoch: int
    pass_index: int
    offset: int
    seconds: float
    held_s: float


@dataclass(frozen=True, slots=True)
class CheckpointDamagedLine(Line):
    """Written at a start for each checkpoint file that cannot be used.

    Attributes:
        detail: the file, its fault, and what is used instead; for people.
    """

    event: ClassVar[str] = "checkpoint-damaged"
    detail: str


@dataclass(frozen=True, slots=True)
class DnnDoneLine(Line):
    """Written when a DNN has converged and left its last round.

    Attributes:
        dnn: which one.
        detail: by which rule; for people.
    """

    event: ClassVar[str] = "dnn-done"
    dnn: str
    detail: str


@dataclass(frozen=True, slots=True)
class DnnFailedLine(Line):
    """Written when a DNN cannot continue; the other DNNs do.

    Attributes:
        dnn: which one.
        cause: `oom`, `nan`, `error`, `checkpoint` or `data`.
        detail: the error; for people.
        rank: MPI rank that failed; null if unknown.
    """

    event: ClassVar[str] = "dnn-failed"
    dnn: str
    cause: str
    detail: str
    rank: int | None = None


@dataclass(frozen=True, slots=True)
class DnnRetriedLine(Line):
    """Written at a start with `--retry-failed` for each DNN that had failed.

    Attributes:
        dnn: which one gets another try.
    """

    event: ClassVar[str] = "dnn-retried"
    dnn: str
