"""Lines about one DNN: its rates, its checkpoints, its result."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from hpcbal.telemetry.ledger.line import Line, Number


@dataclass(frozen=True, slots=True)
class ModelWarningLine(Line):
    """Written once per start for each probable mistake in the model of a DNN.

    Attributes:
        dnn: the DNN.
        detail: what is wrong; text for users.
    """

    event: ClassVar[str] = "model-warning"
    dnn: str
    detail: str


@dataclass(frozen=True, slots=True)
class InitialWeightsLine(Line):
    """Written when a DNN starts from the weights of a file (`init`); a resumed DNN does not read it again.

    Attributes:
        dnn: the DNN.
        path: the file, as the configuration leads to it.
        digest: its SHA-256, hexadecimal.
        which: the epoch of another run's weights, text for users; empty for a file of Keras.
        num_layers: layers that got these weights.
    """

    event: ClassVar[str] = "initial-weights"
    dnn: str
    path: str
    digest: str
    which: str
    num_layers: int


@dataclass(frozen=True, slots=True)
class RateMeasuredLine(Line):
    """Written when a profiling run has ended, or a first pass that measures the rate.

    Attributes:
        dnn: the DNN that was timed.
        num_gpus: number of slots of its group.
        samples_per_s: the rate.
    """

    event: ClassVar[str] = "rate-measured"
    dnn: str
    num_gpus: int
    samples_per_s: Number

    def reached(self) -> tuple[str, object]:
        """Return that the rate is known."""
        return f"rate of {self.dnn} on {self.num_gpus}", True


@dataclass(frozen=True, slots=True)
class CheckpointWrittenLine(Line):
    """Written when a checkpoint is complete on disk.

    Attributes:
        dnn: the DNN.
        epoch: number of completed epochs.
        pass_index: current pass of the stream.
        offset: next sample of that pass.
        seconds: duration of the write.
        held_s: time for which the group could not train.
        only_progress: whether the weights were left out, because the DNN is done and keeps only its best.
    """

    event: ClassVar[str] = "checkpoint-written"
    dnn: str
    epoch: int
    pass_index: int
    offset: int
    seconds: Number
    held_s: Number
    only_progress: bool = False

    def reached(self) -> tuple[str, object]:
        """Return the position of the DNN."""
        return self.dnn, (self.epoch, self.offset)


@dataclass(frozen=True, slots=True)
class BestKeptLine(Line):
    """Written when the weights of a DNN's best epoch so far are complete on disk.

    Also written at a start that continues from an earlier checkpoint, if the best epoch that it has seen is
    another one.

    Attributes:
        dnn: the DNN.
        epoch: the best epoch by the DNN's stop rule; 0 if no best weights are kept any more.
        metric: `stop.monitor`.
        value: its value after that epoch; null without an epoch.
        seconds: duration of the write.
        held_s: time for which the group could not train; 0 if the checkpoint of the same epoch counts it.
    """

    event: ClassVar[str] = "best-kept"
    dnn: str
    epoch: int
    metric: str
    value: float | None
    seconds: Number
    held_s: Number


@dataclass(frozen=True, slots=True)
class CheckpointDamagedLine(Line):
    """Written at a start for each checkpoint file that cannot be used, and for a damaged ledger.

    Attributes:
        detail: the file, the problem, and what is used instead; text for users.
    """

    event: ClassVar[str] = "checkpoint-damaged"
    detail: str


@dataclass(frozen=True, slots=True)
class DnnDoneLine(Line):
    """Written when a DNN has converged and left its last round.

    Attributes:
        dnn: the DNN.
        detail: the stop rule that applied; text for users.
    """

    event: ClassVar[str] = "dnn-done"
    dnn: str
    detail: str


@dataclass(frozen=True, slots=True)
class DnnPrunedLine(Line):
    """Written when a DNN has been stopped early, because others are better, and has left its last round.

    Attributes:
        dnn: the DNN.
        detail: how it compares; text for users.
    """

    event: ClassVar[str] = "dnn-pruned"
    dnn: str
    detail: str


@dataclass(frozen=True, slots=True)
class DnnFailedLine(Line):
    """Written when a DNN cannot continue; the other DNNs continue.

    Attributes:
        dnn: the DNN.
        cause: `oom`, `nan`, `error`, `checkpoint` or `data`.
        detail: the error; text for users.
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
        dnn: the DNN that gets another try.
    """

    event: ClassVar[str] = "dnn-retried"
    dnn: str
