"""The metrics of Keras for torch tensors: the same names and arguments, the same numbers.

Source: keras/src/metrics/*.py define each number.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from hpcbal.training.torch import losses
from hpcbal.training.torch.confusion import (
    AUC,
    Counts,
    MeanOfSamples,
    Precision,
    Recall,
    Thresholds,
    TorchMetric,
    precision_at_recall,
    recall_at_precision,
    sensitivity_at_specificity,
    specificity_at_sensitivity,
)
from hpcbal.training.torch.losses import EPSILON, TorchFunction, aligned, whole
from hpcbal.training.weights import Array


def binary_accuracy(y: Tensor, p: Tensor, threshold: float = 0.5) -> Tensor:
    labels, p = aligned(y, p)
    return (p > float(np.float32(threshold))) == labels


def categorical_accuracy(y: Tensor, p: Tensor) -> Tensor:
    y, p = aligned(y, p)
    return y.argmax(-1) == p.argmax(-1)


def sparse_categorical_accuracy(y: Tensor, p: Tensor) -> Tensor:
    y, p = whole(y, p)
    return y == p.argmax(-1)


def top_k_categorical_accuracy(y: Tensor, p: Tensor, k: int = 5) -> Tensor:
    y, p = aligned(y, p)
    return sparse_top_k_categorical_accuracy(y.argmax(-1), p, k)


def sparse_top_k_categorical_accuracy(
    y: Tensor, p: Tensor, k: int = 5, from_sorted_ids: bool = False
) -> Tensor:
    """In float32, as the kernel of TensorFlow has it: fewer than k predictions are larger than the class'."""
    y, p = whole(y, p)
    p = p.float()
    if from_sorted_ids:
        return (p[..., :k] == y.unsqueeze(-1)).any(-1)
    own = p.gather(-1, y.unsqueeze(-1))
    return ((p > own).sum(-1) < k) & p.isfinite().all(-1)


def cosine_similarity(y: Tensor, p: Tensor, axis: int = -1) -> Tensor:
    return -losses.cosine_similarity(y, p, axis)


def pearson_correlation(y: Tensor, p: Tensor, axis: int = -1) -> Tensor:
    y, p = (each - each.mean(axis, keepdim=True) for each in aligned(y, p))
    y, p = (each / each.square().mean(axis, keepdim=True).sqrt() for each in (y, p))
    return (y * p).mean(axis)


def concordance_correlation(y: Tensor, p: Tensor, axis: int = -1) -> Tensor:
    """As Keras has it: its covariance takes labels less the mean of predictions."""
    y, p = aligned(y, p)
    y_mean, p_mean = (each.mean(axis, keepdim=True) for each in (y, p))
    y_var, p_var = (
        (each - mean).square().mean(axis, keepdim=True) for each, mean in ((y, y_mean), (p, p_mean))
    )
    covariance = (y - p_mean) * (p - p_mean)
    norm = y_var + p_var + (y_mean - p_mean).square()
    return (2.0 * covariance / (norm + EPSILON)).mean(axis)


def _binary_crossentropy(
    y: Tensor, p: Tensor, from_logits: bool = False, label_smoothing: float = 0.0
) -> Tensor:
    return losses.binary_crossentropy(y, p, from_logits, label_smoothing)


class FBetaScore(TorchMetric):
    """The F score of each class: beta times as much weight on recall as on precision.

    Its states are right and wrong predictions, missed labels, and labels, of each class.
    """

    def __init__(self, average: str | None = None, beta: float = 1.0, threshold: float | None = None) -> None:
        if average not in (None, "micro", "macro", "weighted"):
            raise ValueError(f"got average {average!r}, allowed: null, micro, macro or weighted")
        if not isinstance(beta, float) or beta <= 0.0:
            raise ValueError(f"got beta {beta!r}, allowed: a number above 0 with a decimal point")
        if threshold is not None and not (isinstance(threshold, float) and 0.0 < threshold <= 1.0):
            raise ValueError(f"got threshold {threshold!r}, allowed: null, or 0.0 < threshold <= 1.0")
        self._average, self._beta, self._threshold = average, beta, threshold

    def states(self, y: Tensor, predictions: Tensor) -> Sequence[Tensor]:
        y, p = _columns(*aligned(y, predictions))
        if self._threshold is None:
            is_yes = (p >= p.amax(-1, keepdim=True)) & (p.abs() > 1e-9)
        else:
            is_yes = p > self._threshold
        p = is_yes.to(y.dtype)
        return [each.sum(0) for each in (p * y, p * (1.0 - y), (1.0 - p) * y, y)]

    def result(self, states: Array, count: int) -> float:
        found = states.reshape(4, -1)
        if self._average == "micro":
            found = found.sum(1, keepdims=True)
        tp, fp, fn, weights = found
        precision, recall = tp / (tp + fp + EPSILON), tp / (tp + fn + EPSILON)
        square = self._beta**2
        scores = precision * recall / (square * precision + recall + EPSILON) * (1.0 + square)
        if self._average == "weighted":
            return float(np.sum(scores * (weights / (weights.sum() + EPSILON))))
        return float(np.mean(scores))


def f1_score(average: str | None = None, threshold: float | None = None) -> TorchMetric:
    return FBetaScore(average, 1.0, threshold)


class IoU(TorchMetric):
    """Intersection over union of classes, the mean of those that occur; its states are a confusion matrix.

    Keras computes the result in float32, whatever the type of outputs; so does this.

    Args:
        num_classes: of labels and predictions, whose other numbers are left out.
        target_class_ids: the classes to measure.
        ignore_class: label of places that do not count.
        sparse_y_true: whether labels are numbers of classes; otherwise the largest of the last axis.
        sparse_y_pred: the same of predictions.
        axis: -1.
        threshold: predictions of at least this are class 1 and others class 0; None: they are as above.
    """

    def __init__(
        self,
        num_classes: int,
        target_class_ids: Sequence[int],
        ignore_class: int | None = None,
        sparse_y_true: bool = True,
        sparse_y_pred: bool = True,
        axis: int = -1,
        threshold: float | None = None,
    ) -> None:
        if not target_class_ids or not 0 <= min(target_class_ids) <= max(target_class_ids) < num_classes:
            raise ValueError(
                f"got target_class_ids {list(target_class_ids)}, allowed: 0 to {num_classes - 1}"
            )
        if axis != -1:
            raise ValueError(f"got axis {axis}, allowed: -1, classes are the last axis")
        self._num_classes, self._targets = num_classes, list(target_class_ids)
        self._ignored = ignore_class
        self._is_whole_label, self._is_whole_prediction = sparse_y_true, sparse_y_pred
        self._threshold = threshold

    def states(self, y: Tensor, predictions: Tensor) -> Sequence[Tensor]:
        p = predictions
        if self._threshold is not None:
            p = p.float() >= self._threshold
        y = y if self._is_whole_label else y.argmax(-1)
        p = p if self._is_whole_prediction else p.argmax(-1)
        if y.numel() != p.numel():
            raise ValueError(
                f"of a sample, labels have shape {tuple(y.shape[1:])} and predictions {tuple(p.shape[1:])}, "
                "allowed: as many classes of one as of the other (sparse_y_true, sparse_y_pred)"
            )
        y, p = y.flatten(), p.flatten()
        is_counted = (y >= 0) & (y < self._num_classes) & (p >= 0) & (p < self._num_classes)
        if self._ignored is not None:
            is_counted &= y != self._ignored
        cells = torch.where(is_counted, y.long() * self._num_classes + p.long(), 0)
        table = torch.zeros(self._num_classes**2, dtype=torch.int64, device=p.device)
        return [table.index_add(0, cells, is_counted.long())]

    def result(self, states: Array, count: int) -> float:
        table = states.reshape(self._num_classes, self._num_classes)
        both = np.diag(table)
        either = (table.sum(0) + table.sum(1) - both)[self._targets].astype(np.float32)
        both, epsilon = both[self._targets].astype(np.float32), np.float32(EPSILON)
        occurs = either > 1e-9
        shares = np.where(occurs, both / (either + epsilon), np.float32(0.0))
        return float(shares.sum() / (np.float32(occurs.sum()) + epsilon))


def iou(
    num_classes: int,
    target_class_ids: Sequence[int],
    ignore_class: int | None = None,
    sparse_y_true: bool = True,
    sparse_y_pred: bool = True,
    axis: int = -1,
) -> TorchMetric:
    return IoU(num_classes, target_class_ids, ignore_class, sparse_y_true, sparse_y_pred, axis)


def binary_iou(target_class_ids: Sequence[int] = (0, 1), threshold: float = 0.5) -> TorchMetric:
    return IoU(2, target_class_ids, threshold=threshold)


def mean_iou(
    num_classes: int,
    ignore_class: int | None = None,
    sparse_y_true: bool = True,
    sparse_y_pred: bool = True,
    axis: int = -1,
) -> TorchMetric:
    return IoU(num_classes, range(num_classes), ignore_class, sparse_y_true, sparse_y_pred, axis)


def one_hot_iou(
    num_classes: int,
    target_class_ids: Sequence[int],
    ignore_class: int | None = None,
    sparse_y_pred: bool = False,
    axis: int = -1,
) -> TorchMetric:
    return IoU(num_classes, target_class_ids, ignore_class, False, sparse_y_pred, axis)


def one_hot_mean_iou(
    num_classes: int, ignore_class: int | None = None, sparse_y_pred: bool = False, axis: int = -1
) -> TorchMetric:
    return IoU(num_classes, range(num_classes), ignore_class, False, sparse_y_pred, axis)


class R2Score(TorchMetric):
    """The coefficient of determination; its states are sums of labels, their squares, and squared errors."""

    def __init__(self, class_aggregation: str | None = "uniform_average", num_regressors: int = 0) -> None:
        if class_aggregation not in (None, "uniform_average", "variance_weighted_average"):
            raise ValueError(
                f"got class_aggregation {class_aggregation!r}, allowed: null, uniform_average or "
                "variance_weighted_average"
            )
        if num_regressors < 0:
            raise ValueError(f"got num_regressors {num_regressors}, allowed: 0 or more")
        self._aggregation, self._num_regressors = class_aggregation, num_regressors

    def states(self, y: Tensor, predictions: Tensor) -> Sequence[Tensor]:
        y, p = _columns(*aligned(y, predictions))
        return [y.sum(0), y.square().sum(0), (y - p).square().sum(0)]

    def result(self, states: Array, count: int) -> float:
        sums, squares, errors = states.reshape(3, -1)
        total = squares - sums * (sums / count)
        with np.errstate(divide="ignore", invalid="ignore"):
            scores = 1.0 - errors / total
            scores = np.where(np.isinf(scores), 0.0, scores)
            if self._aggregation == "variance_weighted_average":
                scores = np.sum(total * scores) / np.sum(total)
        score, n, more = float(np.mean(scores)), count * sums.size, self._num_regressors
        return score if more == 0 or more >= n - 1 else 1.0 - (1.0 - score) * (n - 1) / (n - more - 1)


def _columns(y: Tensor, p: Tensor) -> tuple[Tensor, Tensor]:
    if p.ndim != 2:
        raise ValueError(f"predictions have shape {tuple(p.shape[1:])} for each sample, allowed: (columns,)")
    return y, p


FROM_LOGITS = ("BinaryCrossentropy", "CategoricalCrossentropy", "SparseCategoricalCrossentropy")
"""Metrics that Keras computes from the logits of predictions where it has made these itself."""

MEANS: Mapping[str, TorchFunction] = {
    "BinaryAccuracy": binary_accuracy,
    "CategoricalAccuracy": categorical_accuracy,
    "SparseCategoricalAccuracy": sparse_categorical_accuracy,
    "TopKCategoricalAccuracy": top_k_categorical_accuracy,
    "SparseTopKCategoricalAccuracy": sparse_top_k_categorical_accuracy,
    "MeanSquaredError": losses.mean_squared_error,
    "RootMeanSquaredError": losses.mean_squared_error,
    "MeanAbsoluteError": losses.mean_absolute_error,
    "MeanAbsolutePercentageError": losses.mean_absolute_percentage_error,
    "MeanSquaredLogarithmicError": losses.mean_squared_logarithmic_error,
    "LogCoshError": losses.log_cosh,
    "CosineSimilarity": cosine_similarity,
    "PearsonCorrelation": pearson_correlation,
    "ConcordanceCorrelation": concordance_correlation,
    "BinaryCrossentropy": _binary_crossentropy,
    "CategoricalCrossentropy": losses.categorical_crossentropy,
    "SparseCategoricalCrossentropy": losses.sparse_categorical_crossentropy,
    "KLDivergence": losses.kl_divergence,
    "Poisson": losses.poisson,
    "Hinge": losses.hinge,
    "SquaredHinge": losses.squared_hinge,
    "CategoricalHinge": losses.categorical_hinge,
}
"""Metrics that are means over samples, by the name of the class in `keras.metrics`."""


def _counts(which: Any, thresholds: Thresholds = None) -> TorchMetric:
    return Counts(which, thresholds)


OTHERS: Mapping[str, Callable[..., TorchMetric]] = {
    "AUC": AUC,
    "Precision": Precision,
    "Recall": Recall,
    "PrecisionAtRecall": precision_at_recall,
    "RecallAtPrecision": recall_at_precision,
    "SensitivityAtSpecificity": sensitivity_at_specificity,
    "SpecificityAtSensitivity": specificity_at_sensitivity,
    "TruePositives": partial(_counts, "tp"),
    "TrueNegatives": partial(_counts, "tn"),
    "FalsePositives": partial(_counts, "fp"),
    "FalseNegatives": partial(_counts, "fn"),
    "F1Score": f1_score,
    "FBetaScore": FBetaScore,
    "IoU": iou,
    "BinaryIoU": binary_iou,
    "MeanIoU": mean_iou,
    "OneHotIoU": one_hot_iou,
    "OneHotMeanIoU": one_hot_mean_iou,
    "R2Score": R2Score,
}
"""The others."""


def arguments_of(kind: str) -> list[str]:
    """The names of the arguments of a metric, by the name of its class in `keras.metrics`."""
    if kind in OTHERS:
        return list(inspect.signature(OTHERS[kind]).parameters)
    return list(inspect.signature(MEANS[kind]).parameters)[2:]


def made(kind: str, args: Mapping[str, Any], link: str) -> TorchMetric:
    """Make a metric by the name of its class in `keras.metrics`.

    Args:
        kind: the class.
        args: of Keras.
        link: from outputs to predictions (`Objective.link`).

    Raises:
        TypeError, ValueError: if it does not take these arguments.
    """
    if kind in OTHERS:
        return OTHERS[kind](**args)
    function = MEANS[kind]
    inspect.signature(function).bind(None, None, **args)
    takes_outputs = kind in FROM_LOGITS and link != "identity" and args.get("ignore_class") is None
    given = {**args, "from_logits": True} if takes_outputs else dict(args)
    return MeanOfSamples(partial(function, **given), takes_outputs, kind == "RootMeanSquaredError")
