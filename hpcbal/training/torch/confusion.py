"""Metrics of torch tensors as sums over samples, and those of yes and no over thresholds.

Source: keras/src/metrics/confusion_metrics.py and metrics_utils.py define what is counted and each result.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Sequence
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from hpcbal.training.objective import AccuracyOfClasses, Metric
from hpcbal.training.torch.losses import EPSILON, aligned, whole
from hpcbal.training.weights import Array


def array_of(tensor: Tensor) -> Array:
    """Return the numbers of a tensor on any device as float64."""
    return tensor.detach().to("cpu", torch.float64).numpy()


class TorchMetric(Metric):
    """A metric whose states are tensors that `states` makes anew of labels and predictions."""

    def build(self, y: Tensor, predictions: Tensor) -> None:
        self.num_states = sum(state.numel() for state in self.states(y, predictions))

    @staticmethod
    def array(tensor: Tensor) -> Array:
        return array_of(tensor)


class TorchAccuracy(TorchMetric, AccuracyOfClasses):
    """The accuracy of classes, with torch."""

    def states(self, y: Tensor, predictions: Tensor) -> Sequence[Tensor]:
        if y.ndim > 1:
            y = y.argmax(-1)
        return [(predictions.argmax(-1) == y).sum()]


class MeanOfSamples(TorchMetric):
    """The mean over samples of what a function returns for each; its state is their sum.

    Args:
        function: from labels and predictions to numbers, shape (n, ...); those of a sample are averaged.
        takes_outputs: whether it gets outputs in place of predictions.
        is_root: whether the metric is the square root of the mean.
    """

    def __init__(
        self, function: Callable[[Any, Any], Tensor], takes_outputs: bool = False, is_root: bool = False
    ) -> None:
        self._function = function
        self._is_root = is_root
        self.takes_outputs = takes_outputs

    def states(self, y: Tensor, predictions: Tensor) -> Sequence[Tensor]:
        values = self._function(y, predictions)
        if not isinstance(values, Tensor):
            raise TypeError(f"it returns {type(values).__name__}, allowed: a tensor")
        if values.ndim == 0:
            raise ValueError("it returns one number for a batch, allowed: a number for each sample")
        values = values.to(predictions.dtype)
        if values.ndim > 1:
            values = values.mean(tuple(range(1, values.ndim)))
        return [values.sum()]

    def result(self, states: Array, count: int) -> float:
        mean = float(states[0]) / count
        return float(np.sqrt(mean)) if self._is_root else mean


def accuracy_of_whole_labels(y: Tensor, p: Tensor) -> Tensor:
    """Compare predictions with labels if the loss does not say what the predictions are.

    With one more axis than the labels, of length 2 or more, predictions are numbers for each class: the last
    axis, or as losses of torch take it, the one after samples. Otherwise they are probabilities of yes.

    Args:
        y: whole numbers, shape (n, ...).
        p: shape (n, ..., num_classes), (n, num_classes, ...), (n, ...) or (n, ..., 1).

    Returns: whether it is right, shape (n, ...).

    Source: the rule of Keras for the metric `accuracy` (keras/src/trainers/compile_utils.py, get_metric).
    """
    if p.ndim == y.ndim + 1 and p.shape[-1] > 1 and p.shape[:-1] == y.shape:
        return p.argmax(-1) == y
    if p.ndim == y.ndim + 1 and p.ndim > 2 and p.shape[1] > 1:
        return p.argmax(1) == whole(y, p.movedim(1, -1))[0]
    return (p.reshape(y.shape) > 0.5).to(y.dtype) == y


_BELOW_ALL = -1e10
"""In place of a prediction that is not among the k largest."""

Thresholds = float | Sequence[float] | None
Numbers = Array | float


class OverThresholds(TorchMetric):
    """Counts of samples' labels by whether predictions are above each of T thresholds.

    The states are the right and the wrong ones among predictions above each threshold, and how many labels
    are yes and no. A prediction equal to a threshold is not above it.

    Args:
        thresholds: T numbers.
        top_k: if given, only the k largest predictions of a sample count as they are.
        class_id: if given, only this place of the last axis counts.
        by_label: whether each of the columns of predictions, shape (n, L), has its own counts.
        label_weights: how much each place of the last axis counts; None: the same.
    """

    def __init__(
        self,
        thresholds: Sequence[float],
        top_k: int | None = None,
        class_id: int | None = None,
        by_label: bool = False,
        label_weights: Sequence[float] | None = None,
    ) -> None:
        self._thresholds = [float(each) for each in thresholds]
        self._top_k = top_k
        self._class_id = class_id
        self._by_label = by_label
        self._label_weights = label_weights
        self._num_labels = 1
        self._asked_labels = 0
        many = len(self._thresholds)
        even = np.arange(many, dtype=np.float32) / max(1, many - 1)
        self._is_even = many >= 3 and bool(np.allclose(self._thresholds, even, atol=EPSILON))

    def build(self, y: Tensor, predictions: Tensor) -> None:
        if self._by_label and predictions.ndim != 2:
            raise ValueError(
                f"predictions have shape {tuple(predictions.shape[1:])} for each sample, allowed with "
                "multi_label: a number for each label"
            )
        if self._class_id is not None and predictions.ndim < 2:
            raise ValueError("predictions are one number for each sample, which have no class_id")
        self._num_labels = predictions.shape[1] if self._by_label else 1
        if self._asked_labels not in (0, self._num_labels):
            raise ValueError(
                f"got num_labels {self._asked_labels}, allowed: {self._num_labels}, as many as predictions"
            )
        super().build(y, predictions)

    def states(self, y: Tensor, predictions: Tensor) -> Sequence[Tensor]:
        y, p = aligned(y, predictions)
        if self._top_k is not None:
            p = _only_largest(p, self._top_k)
        if self._class_id is not None:
            y, p = (each[..., self._class_id, None] for each in (y, p))
        is_yes = y != 0
        yes, no = is_yes.long(), (~is_yes).long()
        if self._label_weights is not None and not self._by_label:
            weights = torch.as_tensor(self._label_weights, dtype=p.dtype, device=p.device)
            yes, no = yes * weights, no * weights
        columns = (len(p), self._num_labels) if self._by_label else (p.numel(), 1)
        yes, no, p = (each.reshape(columns) for each in (yes, no, p))
        return [self._above(yes, p), self._above(no, p), yes.sum(0), no.sum(0)]

    def _above(self, counts: Tensor, p: Tensor) -> Tensor:
        """Sums of counts, shape (n, L), whose predictions are above each threshold, shape (L, T)."""
        many = len(self._thresholds)
        if not self._is_even:
            thresholds = torch.tensor(self._thresholds, dtype=p.dtype, device=p.device)
            return ((p.unsqueeze(-1) > thresholds) * counts.unsqueeze(-1)).sum(0)
        bucket = torch.ceil(p.clamp(0.0, 1.0) * (many - 1)) - 1.0
        if self._thresholds[0] < 0.0:
            bucket = bucket.clamp(min=0.0)
        bucket = torch.nan_to_num(bucket, nan=-1.0).long() + 1
        columns = torch.arange(p.shape[1], device=p.device) * many
        table = torch.zeros(p.shape[1] * many, dtype=counts.dtype, device=p.device)
        table = table.index_add(0, (bucket + columns).flatten(), counts.flatten()).reshape(-1, many)
        at_least = table.flip(-1).cumsum(-1).flip(-1)
        return torch.nn.functional.pad(at_least[:, 1:], (0, 1))

    def result(self, states: Array, count: int) -> float:
        many, labels = len(self._thresholds), self._num_labels
        above, totals = np.split(states, [2 * many * labels])
        tp, fp = above.reshape(2, labels, many)
        yes, no = totals.reshape(2, labels, 1)
        return float(np.mean(self._value(tp, fp, no - fp, yes - tp)))

    @abstractmethod
    def _value(self, tp: Array, fp: Array, tn: Array, fn: Array) -> Numbers:
        """The result of the counts at each threshold, shape (L, T); the mean of what this returns."""


class Counts(OverThresholds):
    """One of the four counts."""

    def __init__(self, which: Literal["tp", "fp", "tn", "fn"], thresholds: Thresholds = None) -> None:
        super().__init__(_listed(thresholds, 0.5))
        self._which = which

    def _value(self, tp: Array, fp: Array, tn: Array, fn: Array) -> Numbers:
        return {"tp": tp, "fp": fp, "tn": tn, "fn": fn}[self._which]


class Precision(OverThresholds):
    """The share of yes among predictions above the thresholds."""

    def __init__(
        self, thresholds: Thresholds = None, top_k: int | None = None, class_id: int | None = None
    ) -> None:
        super().__init__(_listed(thresholds, 0.5 if top_k is None else _BELOW_ALL), top_k, class_id)

    def _value(self, tp: Array, fp: Array, tn: Array, fn: Array) -> Numbers:
        return _ratio(tp, tp + fp)


class Recall(Precision):
    """The share of predictions above the thresholds among yes."""

    def _value(self, tp: Array, fp: Array, tn: Array, fn: Array) -> Numbers:
        return _ratio(tp, tp + fn)


class BestUnder(OverThresholds):
    """The largest rate at those of evenly spread thresholds where another rate is at least `least`."""

    def __init__(
        self,
        best: Callable[[Array, Array, Array, Array], Array],
        constrained: Callable[[Array, Array, Array, Array], Array],
        name: str,
        least: float,
        num_thresholds: int,
        class_id: int | None,
    ) -> None:
        if not 0 <= least <= 1:
            raise ValueError(f"got {name} {least}, allowed: 0 to 1")
        if num_thresholds <= 0:
            raise ValueError(f"got num_thresholds {num_thresholds}, allowed: 1 or more")
        spread = [n / (num_thresholds - 1) for n in range(num_thresholds)] if num_thresholds > 1 else [0.5]
        super().__init__(spread, class_id=class_id)
        if num_thresholds == 2:
            self._is_even = True
        self._best, self._constrained, self._least = best, constrained, least

    def _value(self, tp: Array, fp: Array, tn: Array, fn: Array) -> Numbers:
        is_allowed = self._constrained(tp, fp, tn, fn) >= self._least
        return float(np.max(np.where(is_allowed, self._best(tp, fp, tn, fn), 0.0), initial=0.0))


def _recall(tp: Array, fp: Array, tn: Array, fn: Array) -> Array:
    return _ratio(tp, tp + fn)


def _precision(tp: Array, fp: Array, tn: Array, fn: Array) -> Array:
    return _ratio(tp, tp + fp)


def _specificity(tp: Array, fp: Array, tn: Array, fn: Array) -> Array:
    return _ratio(tn, tn + fp)


def sensitivity_at_specificity(
    specificity: float, num_thresholds: int = 200, class_id: int | None = None
) -> TorchMetric:
    return BestUnder(_recall, _specificity, "specificity", specificity, num_thresholds, class_id)


def specificity_at_sensitivity(
    sensitivity: float, num_thresholds: int = 200, class_id: int | None = None
) -> TorchMetric:
    return BestUnder(_specificity, _recall, "sensitivity", sensitivity, num_thresholds, class_id)


def precision_at_recall(recall: float, num_thresholds: int = 200, class_id: int | None = None) -> TorchMetric:
    return BestUnder(_precision, _recall, "recall", recall, num_thresholds, class_id)


def recall_at_precision(
    precision: float, num_thresholds: int = 200, class_id: int | None = None
) -> TorchMetric:
    return BestUnder(_recall, _precision, "precision", precision, num_thresholds, class_id)


class AUC(OverThresholds):
    """The area under a curve through the points of all thresholds."""

    def __init__(
        self,
        num_thresholds: int = 200,
        curve: str = "ROC",
        summation_method: str = "interpolation",
        thresholds: Sequence[float] | None = None,
        multi_label: bool = False,
        num_labels: int | None = None,
        label_weights: Sequence[float] | None = None,
        from_logits: bool = False,
    ) -> None:
        self._curve = _one_of("curve", curve, ("roc", "pr", "prgain"))
        self._method = _one_of(
            "summation_method", summation_method, ("interpolation", "majoring", "minoring")
        )
        if thresholds is None and num_thresholds <= 1:
            raise ValueError(f"got num_thresholds {num_thresholds}, allowed: 2 or more")
        if num_labels and not multi_label:
            raise ValueError("got num_labels, allowed: only with multi_label")
        if thresholds is None:
            thresholds = [(n + 1) / (num_thresholds - 1) for n in range(num_thresholds - 2)]
        spread = [-EPSILON, *sorted(thresholds), 1.0 + EPSILON]
        super().__init__(spread, by_label=multi_label, label_weights=label_weights)
        self._asked_labels = num_labels or 0
        if len(spread) == 2:
            self._is_even = True

    def _value(self, tp: Array, fp: Array, tn: Array, fn: Array) -> Numbers:
        areas = self._areas(tp, fp, tn, fn).sum(-1)
        if not self._by_label or self._label_weights is None:
            return areas
        weights = np.asarray(self._label_weights, np.float64)
        return _ratio((areas * weights).sum(), weights.sum())

    def _areas(self, tp: Array, fp: Array, tn: Array, fn: Array) -> Array:
        """The area between each two thresholds, shape (L, T - 1)."""
        if self._curve == "pr" and self._method == "interpolation":
            return _interpolated(tp, fp, fn)
        recall = _ratio(tp, tp + fn)
        if self._curve == "roc":
            x, y = _ratio(fp, fp + tn), recall
        elif self._curve == "pr":
            x, y = recall, _ratio(tp, tp + fp)
        else:
            scale = _ratio(tp + fn, tn + fp)
            x = np.where(tp == 0, 0.0, np.maximum(1.0 - scale * _ratio(fn, tp), 0.0))
            y = np.where(tp == 0, 1.0, 1.0 - scale * _ratio(fp, tp))
        first, second = y[:, :-1], y[:, 1:]
        if self._method == "interpolation":
            heights = (first + second) / 2.0
        else:
            heights = (np.minimum if self._method == "minoring" else np.maximum)(first, second)
        areas: Array = (x[:, :-1] - x[:, 1:]) * heights
        return areas


def _interpolated(tp: Array, fp: Array, fn: Array) -> Array:
    """Areas under the curve of precision over recall, whose precision is interpolated between thresholds.

    Source: Davis and Goadrich, "The Relationship Between Precision-Recall and ROC Curves" (ICML 2006).
    """
    p = tp + fp
    dtp, dp = tp[:, :-1] - tp[:, 1:], p[:, :-1] - p[:, 1:]
    slope = _ratio(dtp, np.maximum(dp, 0.0))
    intercept = tp[:, 1:] - slope * p[:, 1:]
    are_some = (p[:, :-1] > 0) & (p[:, 1:] > 0)
    ratio = np.where(are_some, _ratio(p[:, :-1], np.maximum(p[:, 1:], 0.0)), 1.0)
    return _ratio(slope * (dtp + intercept * np.log(ratio)), np.maximum(tp[:, 1:] + fn[:, 1:], 0.0))


def _ratio(above: Array, below: Array) -> Array:
    """Their quotient; 0 where it would be divided by 0."""
    above, below = np.broadcast_arrays(np.asarray(above, np.float64), np.asarray(below, np.float64))
    return np.divide(above, below, out=np.zeros(above.shape), where=below != 0)


def _only_largest(p: Tensor, k: int) -> Tensor:
    """The k largest of the last axis, the first of equal ones, and a small number in place of the rest."""
    order = p.argsort(dim=-1, descending=True, stable=True)[..., :k]
    is_kept = torch.zeros_like(p, dtype=torch.bool).scatter(
        -1, order, torch.ones_like(order, dtype=torch.bool)
    )
    return torch.where(is_kept, p, _BELOW_ALL)


def _listed(thresholds: Thresholds, default: float) -> Sequence[float]:
    if thresholds is None:
        return [default]
    listed = [thresholds] if isinstance(thresholds, int | float) else list(thresholds)
    if not listed or any(not 0 <= each <= 1 for each in listed):
        raise ValueError(f"got thresholds {listed}, allowed: numbers of 0 to 1")
    return listed


def _one_of(name: str, given: str, allowed: Sequence[str]) -> str:
    if str(given).lower() not in allowed:
        raise ValueError(f"got {name} {given!r}, allowed: {', '.join(allowed)}")
    return given.lower()
