"""Lines about models, weights and samples of an ensemble, which its state machine does not see."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from hpcbal.events.line import Line, Number


@dataclass(frozen=True, slots=True)
class ModelWarningLine(Line):
    """Written once per start for each probable mistake in the model of a DNN, or in the file it starts from.

    Attributes:
        dnn_id: the DNN.
        detail: what is wrong; text for users.
    """

    event: ClassVar[str] = "model-warning"
    dnn_id: str
    detail: str


@dataclass(frozen=True, slots=True)
class InitialWeightsLine(Line):
    """Written when a DNN starts from the weights of a file (`init`); a resumed DNN does not read it again.

    Attributes:
        dnn_id: the DNN.
        path: the file, as the configuration leads to it.
        digest: its SHA-256, hexadecimal.
        which: the epoch of another run's weights, text for users; empty for a file of Keras.
        num_layers: layers that got these weights.
    """

    event: ClassVar[str] = "initial-weights"
    dnn_id: str
    path: str
    digest: str
    which: str
    num_layers: int


@dataclass(frozen=True, slots=True)
class BestKeptLine(Line):
    """Written when the weights of a DNN's best epoch so far are complete on disk.

    Also written at a start that continues from an earlier checkpoint, if the best epoch that it has seen is
    another one.

    Attributes:
        dnn_id: the DNN.
        epoch: the best epoch by the DNN's stop rule; 0 if no best weights are kept any more.
        metric: `stop.monitor`.
        value: its value after that epoch; null without an epoch, or if it is not finite.
        seconds: duration of the write.
        held_s: time for which the group could not train; 0 if the checkpoint of the same epoch counts it.
    """

    event: ClassVar[str] = "best-kept"
    dnn_id: str
    epoch: int
    metric: str
    value: Number
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
        dnn_id: the DNN.
        detail: the stop rule that applied; text for users.
        epochs: number of completed epochs.
    """

    event: ClassVar[str] = "dnn-done"
    dnn_id: str
    detail: str
    epochs: int = 0


@dataclass(frozen=True, slots=True)
class DnnPrunedLine(Line):
    """Written when a DNN has been stopped early, because others are better, and has left its last round.

    Attributes:
        dnn_id: the DNN.
        detail: how it compares; text for users.
        epochs: number of completed epochs.
    """

    event: ClassVar[str] = "dnn-pruned"
    dnn_id: str
    detail: str
    epochs: int = 0


@dataclass(frozen=True, slots=True)
class DnnStoppedLine(Line):
    """Written when a DNN that the user asked to stop (`hpcbal stop`) has left its last round.

    Attributes:
        dnn_id: the DNN.
        detail: who asked; text for users.
        epochs: number of completed epochs; 0 if it has not trained, and then it has no weights.
    """

    event: ClassVar[str] = "dnn-stopped"
    dnn_id: str
    detail: str
    epochs: int = 0


@dataclass(frozen=True, slots=True)
class DnnRetriedLine(Line):
    """Written at a start with `--retry-failed` for each DNN that had failed.

    Attributes:
        dnn_id: the DNN that gets another try.
    """

    event: ClassVar[str] = "dnn-retried"
    dnn_id: str


@dataclass(frozen=True, slots=True)
class BadSampleLine(Line):
    """Written once per start for each sample that cannot be read or preprocessed.

    Attributes:
        sample_id: its index in the dataset.
        where: its file or position; text for users.
        reason: the error.
    """

    event: ClassVar[str] = "bad-sample"
    sample_id: int
    where: str
    reason: str
