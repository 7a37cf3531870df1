"""The place of a job in its data, the records of its epochs, and the names of metrics."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any


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
