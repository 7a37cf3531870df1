"""How a library of tensors makes losses and metrics, and the arithmetic between them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

from hpcbal.training.metric import Metric
from hpcbal.training.weights import Array

LossFunction = Callable[[Any, Any], Any]
"""From labels and outputs to one number, or several, for each sample."""


class TensorLibrary(ABC):
    """The part of `Objective` that a library of tensors, such as Keras, does in its own way."""

    @abstractmethod
    def _cross_entropy(self, y: Any, logits: Any) -> Any:
        """The default loss of each sample, shape (n,): of classes or shares, smoothed."""

    @abstractmethod
    def _made_loss(self, kind: str, args: Mapping[str, Any]) -> LossFunction:
        """A loss by the name of its class in Keras, such as `Huber`; a wrong argument is a `TypeError`."""

    @abstractmethod
    def _own_loss(self, name: str, found: Any, args: Mapping[str, Any]) -> LossFunction:
        """The loss that a user's function or class stands for."""

    @abstractmethod
    def _accuracy_of_classes(self) -> Metric:
        """The accuracy of logits of classes, or of shares."""

    @abstractmethod
    def _accuracy_of_whole_labels(self) -> Metric:
        """The accuracy where the loss does not say what predictions are, and labels are whole numbers."""

    @abstractmethod
    def _made_metric(self, kind: str, args: Mapping[str, Any]) -> Metric:
        """A metric by the name of its class in Keras; a wrong argument is a `TypeError` or `ValueError`."""

    @abstractmethod
    def _own_metric(self, name: str, found: Any, args: Mapping[str, Any]) -> Metric:
        """The metric that a user's function or class stands for."""

    @abstractmethod
    def _arguments(self, what: Literal["loss", "metric"], kind: str) -> Sequence[str]:
        """The names of the arguments that a loss or metric takes."""

    # Arithmetic of a library.

    @abstractmethod
    def _tensor(self, values: Any) -> Any:
        """Return what a loss returned as a tensor."""

    @abstractmethod
    def _like(self, values: Any, tensor: Any) -> Any:
        """Return numbers as a tensor of the type of another one, where that is."""

    @abstractmethod
    def _mean(self, values: Any, axes: tuple[int, ...]) -> Any: ...

    @abstractmethod
    def _sum_of_last(self, values: Any) -> Any:
        """The sum over the last axis."""

    @abstractmethod
    def _take(self, values: Any, index: Any) -> Any: ...

    @abstractmethod
    def _softmax(self, values: Any) -> Any:
        """Over the last axis."""

    @abstractmethod
    def _sigmoid(self, values: Any) -> Any: ...

    @abstractmethod
    def _log(self, values: Any) -> Any:
        """The logarithm, of the smallest step above 1 in place of what is less."""

    @abstractmethod
    def _array(self, tensor: Any) -> Array:
        """Return the numbers of a tensor."""
