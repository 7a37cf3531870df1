"""The place of a job in its data, records and measurements of its epochs, and the names of metrics.

Of the measurements of a group only `evidence` decides anything.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from hpcbal.events.line import Facts, Number


@dataclass(frozen=True, slots=True)
class RankFacts(Facts):
    """How the ranks of a group spent the training steps of an epoch: one number per rank, in rank order.

    Attributes:
        wait_s: time waiting for batches.
        compute_s: time from having a batch until arriving at the collective.
        collective_s: time in the collective, mostly waiting for slower ranks.
        samples: number of valid samples that the rank computed on.
        worked_s: time that balancing equalises: `compute_s` and the rank's own preprocessing.
        work: work of these samples, in samples of mean size; null if samples do not differ in size.
        waited_s: the part of `collective_s` spent waiting for slower ranks, beyond the shortest
            all-reduce of the epoch; null likewise.
        slowest_work: sum over the steps of the work that a rank of mean weight does while the slowest rank
            does its own; null likewise. A rank's weight is its planned part of a step's work.

    Raises:
        ValueError: if the lists differ in length or are empty.
    """

    wait_s: tuple[Number, ...]
    compute_s: tuple[Number, ...]
    collective_s: tuple[Number, ...]
    samples: tuple[int, ...]
    worked_s: tuple[Number, ...]
    work: tuple[Number, ...] | None = None
    waited_s: tuple[Number, ...] | None = None
    slowest_work: Number | None = None

    def __post_init__(self) -> None:
        rows = (self.wait_s, self.compute_s, self.collective_s, self.samples, self.worked_s)
        lengths = {len(row) for row in (*rows, self.work, self.waited_s) if row is not None}
        if lengths == {0} or len(lengths) > 1:
            raise ValueError("its lists must have one number for each rank of the group")


@dataclass(frozen=True, slots=True)
class Straggler(Facts):
    """The slot, or the all-reduce, for which a group waited in an epoch.

    Attributes:
        slot: slot whose rank came last; null if the all-reduce itself takes most of the time.
        why: `input` (waiting for data), `compute` or `collective`.
        late_s: how much later it came than the mean of the others; with `collective`, time of the all-reduce.
    """

    slot: int | None
    why: str
    late_s: Number


@dataclass(frozen=True, slots=True)
class BalanceFacts(Facts):
    """How the steps of an uneven group were split.

    Attributes:
        shares: samples of each rank in a full step, at the epoch's end.
        changes: number of changes of the shares in this epoch.
        decided_s: time spent on decisions.
        predictor: model that predicts speeds; null if none is used.
        fitted: whether the model has been fitted.
        fits: number of fits in this epoch.
        fit_s: time that these fits took.
        remove: group rank without which the group would be faster; null if there is none.
    """

    shares: tuple[int, ...]
    changes: int = 0
    decided_s: Number = 0.0
    predictor: str | None = None
    fitted: bool | None = None
    fits: int | None = None
    fit_s: float | None = None
    remove: int | None = None


@dataclass(frozen=True, slots=True)
class PartitionFacts(Facts):
    """The state of partitioned data; lists have one number per rank of the group.

    Attributes:
        sizes: number of samples in each part.
        traversals: number of traversals of each part.
        gap: largest difference between traversals.
        migrations: number of migrations so far in this round.
        moved: number of samples that they moved.
    """

    sizes: tuple[int, ...]
    traversals: tuple[Number, ...]
    gap: Number
    migrations: int
    moved: int


@dataclass(frozen=True, slots=True)
class EpochFacts(Facts):
    """Measurements of the group's master; no decision depends on them but on `evidence`.

    After a resume inside a pass, they count from the resume.

    Attributes:
        wait_s: time waiting for batches.
        num_steps: number of training and validation steps.
        num_samples: number of valid samples in these steps, over all ranks.
        num_trained: number of these samples that were in training steps.
        trained_s: time in training steps, without waiting for batches.
        ranks: measurements of each rank; null for a group of one rank.
        balance: how the steps were split; null if shares are even.
        partition: state of partitioned data; null if data is not partitioned.
        learning_rate: of the last training step; null if it does not change.
        augment_s: time spent on `augment`, mostly while the network computed; null without it.
        device_busy: share of the time, 0 to 1, in which the GPU of the group's master ran kernels; null where
            no library measures it.
        evidence: predictions of the DNN for a few validation items, from which committees are chosen with
            `prune.rule: committee` or `search.for: committee`, as text: `p` and minus the logarithms of the
            right answers' probabilities in float16, or `e` and the errors of values in float32, in base64;
            null without these.
    """

    wait_s: Number
    num_steps: int
    num_samples: int
    num_trained: int
    trained_s: Number
    ranks: RankFacts | None = None
    balance: BalanceFacts | None = None
    partition: PartitionFacts | None = None
    learning_rate: Number | None = None
    augment_s: Number | None = None
    device_busy: float | None = None
    evidence: str | None = None

    @property
    def num_ranks(self) -> int | None:
        """Return the number of ranks of the group; None if nothing was measured."""
        if self.ranks is not None:
            return len(self.ranks.samples)
        return 1 if self.num_steps else None


NOTHING_MEASURED = EpochFacts(0.0, 0, 0, 0, 0.0)


@dataclass(frozen=True, slots=True)
class Position:
    """A point in the data.

    Attributes:
        pass_index: which pass, from 0.
        offset: the next sample of that pass, 0 to the samples of a pass.
    """

    pass_index: int
    offset: int = 0


@dataclass(frozen=True, slots=True)
class EpochRecord:
    """One line of a job's history; `epoch` counts from 1, so it is the number of completed epochs.

    Attributes:
        evidence: see `EpochFacts`; checkpoints do not keep it in their history.
    """

    epoch: int
    pass_index: int
    metrics: Mapping[str, float] = field(default_factory=dict)
    seconds: float = 0.0
    evidence: str | None = field(default=None, compare=False)

    def to_json(self) -> dict[str, Any]:
        """Return the record as JSON keeps it; floats survive exactly, and NaN if the writer allows it."""
        return {
            "epoch": self.epoch,
            "pass_index": self.pass_index,
            "metrics": {name: float(value) for name, value in self.metrics.items()},
            "seconds": float(self.seconds),
        }

    @classmethod
    def from_json(cls, fields: Mapping[str, Any]) -> EpochRecord:
        """Return the record that `to_json` gave; a metric that is null is NaN.

        Raises:
            ValueError, KeyError, TypeError, AttributeError: if a field is missing or has another type.
        """
        metrics = {
            str(name): float("nan") if value is None else float(value)
            for name, value in fields["metrics"].items()
        }
        return cls(int(fields["epoch"]), int(fields["pass_index"]), metrics, float(fields["seconds"]))


VALIDATION = "val_"
"""Prefix of a metric's name where it is that of the validation samples."""

LOSS = "loss"

OTHER_FIELDS = frozenset(
    {"schema", "epoch", "pass_index", "time", "seconds", "learning_rate", "num_slots", "num_workers"}
)
"""Fields beside the metrics in a line of metrics.jsonl. No metric may have such a name."""

KERAS_METRICS: Mapping[str, tuple[str, bool]] = {
    "accuracy": ("Accuracy", True),
    "binary_accuracy": ("BinaryAccuracy", True),
    "categorical_accuracy": ("CategoricalAccuracy", True),
    "sparse_categorical_accuracy": ("SparseCategoricalAccuracy", True),
    "top_k_categorical_accuracy": ("TopKCategoricalAccuracy", True),
    "sparse_top_k_categorical_accuracy": ("SparseTopKCategoricalAccuracy", True),
    "auc": ("AUC", True),
    "precision": ("Precision", True),
    "recall": ("Recall", True),
    "precision_at_recall": ("PrecisionAtRecall", True),
    "recall_at_precision": ("RecallAtPrecision", True),
    "sensitivity_at_specificity": ("SensitivityAtSpecificity", True),
    "specificity_at_sensitivity": ("SpecificityAtSensitivity", True),
    "true_positives": ("TruePositives", True),
    "true_negatives": ("TrueNegatives", True),
    "false_positives": ("FalsePositives", False),
    "false_negatives": ("FalseNegatives", False),
    "f1_score": ("F1Score", True),
    "fbeta_score": ("FBetaScore", True),
    "iou": ("IoU", True),
    "binary_iou": ("BinaryIoU", True),
    "mean_iou": ("MeanIoU", True),
    "one_hot_iou": ("OneHotIoU", True),
    "one_hot_mean_iou": ("OneHotMeanIoU", True),
    "mean_squared_error": ("MeanSquaredError", False),
    "root_mean_squared_error": ("RootMeanSquaredError", False),
    "mean_absolute_error": ("MeanAbsoluteError", False),
    "mean_absolute_percentage_error": ("MeanAbsolutePercentageError", False),
    "mean_squared_logarithmic_error": ("MeanSquaredLogarithmicError", False),
    "log_cosh_error": ("LogCoshError", False),
    "r2_score": ("R2Score", True),
    "cosine_similarity": ("CosineSimilarity", True),
    "pearson_correlation": ("PearsonCorrelation", True),
    "concordance_correlation": ("ConcordanceCorrelation", True),
    "binary_crossentropy": ("BinaryCrossentropy", False),
    "categorical_crossentropy": ("CategoricalCrossentropy", False),
    "sparse_categorical_crossentropy": ("SparseCategoricalCrossentropy", False),
    "kl_divergence": ("KLDivergence", False),
    "poisson": ("Poisson", False),
    "hinge": ("Hinge", False),
    "squared_hinge": ("SquaredHinge", False),
    "categorical_hinge": ("CategoricalHinge", False),
    "mse": ("MeanSquaredError", False),
    "rmse": ("RootMeanSquaredError", False),
    "mae": ("MeanAbsoluteError", False),
    "mape": ("MeanAbsolutePercentageError", False),
    "msle": ("MeanSquaredLogarithmicError", False),
}
"""Metrics that a configuration may name: the class in `keras.metrics`, and whether more is better."""

LESS_IS_BETTER = ("loss", "error", "distance", "divergence", "entropy", "deviation", "perplexity")
"""One of these in a name of a user's own says that less is better."""


def finite_metrics(metrics: Mapping[str, float]) -> dict[str, float | None]:
    """Return metrics in strict JSON: NaN and infinities become None."""
    return {name: float(value) if math.isfinite(value) else None for name, value in metrics.items()}


def base_name(name: str) -> str:
    """The name of a metric without the prefix for validation samples."""
    return name.removeprefix(VALIDATION)


def is_more_better(name: str) -> bool | None:
    """Whether a larger value is better; None if the name does not say.

    Args:
        name: of a metric, such as `accuracy`, `val_loss`, or one of a user's own.
    """
    base = base_name(name)
    known = max((name for name in KERAS_METRICS if f"_{base}".endswith(f"_{name}")), key=len, default=None)
    if known is not None:  # of an output, such as price_mae
        return KERAS_METRICS[known][1]
    if any(word in base.lower() for word in LESS_IS_BETTER):
        return False
    return None


def shows_more_better(name: str) -> bool:
    """Whether tables and charts show the largest value as the best: where the name does not say, they do."""
    return is_more_better(name) is not False


def main_metric(names_by_job: Iterable[Iterable[str]]) -> str:
    """The metric by which jobs are compared, without prefix: the first one that all jobs have, else the loss.

    A count, such as `num_nonzero`, is none: neither more nor less of it is better.

    Args:
        names_by_job: names of the metrics of each job, in order, with or without the prefix.
    """
    named = [list(dict.fromkeys(map(base_name, names))) for names in names_by_job]
    named = [names for names in named if names]
    shared = set(named[0]).intersection(*named[1:]) if named else set()
    compared = (name for name in (named[0] if named else []) if name in shared and name != LOSS)
    return next((name for name in compared if not name.startswith("num_")), LOSS)
