"""Metrics of torch tensors: sums over samples, and what follows from them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from hpcbal.training.metric import AccuracyOfClasses, Metric
from hpcbal.training.torch.losses import whole
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
