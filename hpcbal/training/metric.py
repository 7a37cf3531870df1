"""Metrics as sums over samples, whatever library computes them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

import numpy as np

from hpcbal.training.weights import Array


class Metric(ABC):
    """A metric whose states are sums over samples.

    Attributes:
        num_states: how many numbers they are; known after `build`.
        takes_outputs: whether `states` gets the outputs of the model instead of predictions.
    """

    num_states = 0
    takes_outputs = False

    @abstractmethod
    def build(self, y: Any, predictions: Any) -> None:
        """Get ready for labels and predictions of these shapes."""

    @abstractmethod
    def states(self, y: Any, predictions: Any) -> Sequence[Any]:
        """The sums over these samples, as tensors of any shape; traced."""

    @abstractmethod
    def result(self, states: Array, count: int) -> float:
        """The metric of `count` >= 1 samples with these sums, shape (num_states,)."""

    def why_not_additive(self, y: Any, predictions: Any) -> str:
        """Why its states are not sums over samples, found by trying; empty if they are.

        Compares the sums of all samples with those of two unequal parts.
        """
        whole, first, rest = (
            self.sums(y[part], predictions[part]) for part in (slice(None), slice(0, 1), slice(1, None))
        )
        scale = np.maximum(1.0, np.abs(whole))
        if not np.all(np.abs(whole - (first + rest)) <= 1e-3 * scale):
            return (
                "its states after all samples are not the sum of its states after parts of them (labels have "
                f"shape {tuple(y.shape[1:])} for each sample, predictions {tuple(predictions.shape[1:])})"
            )
        return ""

    def sums(self, y: Any, predictions: Any) -> Array:
        """The states as one array, shape (num_states,)."""
        states = [self.array(state).ravel() for state in self.states(y, predictions)]
        return np.concatenate(states) if states else np.zeros(0)

    @staticmethod
    def array(tensor: Any) -> Array:
        """Return the numbers of a tensor as float64."""
        return np.asarray(tensor, np.float64)


class AccuracyOfClasses(Metric):
    """Share of samples whose largest output is that of their class, or of the largest of their shares.

    Its state is the number of these samples.
    """

    num_states = 1
    takes_outputs = True

    def build(self, y: Any, predictions: Any) -> None: ...

    def result(self, states: Array, count: int) -> float:
        return float(states[0]) / count
