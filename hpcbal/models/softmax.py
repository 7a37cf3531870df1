"""Softmax regression in NumPy: the model of the emulated backend, small but able to learn."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]
Arrays = dict[str, Array]


class EmulatedModel:
    """The model that the emulated backend trains; override its methods to train something else.

    The model holds no weights: it gets them as `parameters`, so that the backend can keep, sum, save and load
    them.

    Args:
        num_features: inputs of the regression, >= 1; a sample is flattened, and `num_features` of its numbers
            are picked at even distances.
        num_classes: >= 2.

    Raises:
        ValueError: if an argument is out of range.
    """

    def __init__(self, num_features: int, num_classes: int) -> None:
        if num_features < 1 or num_classes < 2:
            raise ValueError(
                f"got num_features {num_features} and num_classes {num_classes}, allowed: >= 1 and >= 2"
            )
        self.num_features = num_features
        self.num_classes = num_classes

    def initial_parameters(self, rng: np.random.Generator) -> Arrays:
        """The initial weights, by path-like names, of any floating-point type."""
        scale = 1.0 / math.sqrt(self.num_features)
        return {
            "softmax/kernel": rng.normal(0.0, scale, (self.num_features, self.num_classes)),
            "softmax/bias": np.zeros(self.num_classes),
        }

    def loss(self, parameters: Mapping[str, Array], x: Array | list[Array], y: Array) -> tuple[float, int]:
        """Sum of the cross entropies, and number of correctly predicted samples.

        Args:
            parameters: weights, with the names of `initial_parameters`.
            x: samples, shape (n, ...), or a list of n arrays of different shapes; read-only, and valid only
                during the call.
            y: classes, shape (n,), or distributions over classes, shape (n, num_classes).
        """
        loss, correct, _, _ = self._forward(parameters, x, y)
        return loss, correct

    def probabilities(self, parameters: Mapping[str, Array], x: Array | list[Array]) -> Array:
        """The probabilities of the classes, shape (n, num_classes)."""
        return self._forward(parameters, x, np.zeros(len(x), np.int64))[2]

    def loss_and_gradient(
        self, parameters: Mapping[str, Array], x: Array | list[Array], y: Array
    ) -> tuple[float, int, Arrays]:
        """The result of `loss`, and the gradients of the SUM of the losses by name of the parameter."""
        loss, correct, error, features = self._forward(parameters, x, y)
        if y.ndim == 1:
            error[np.arange(len(y)), y] -= 1.0  # now (n, num_classes): d loss / d logits
        else:
            error -= y
        return loss, correct, {"softmax/kernel": features.T @ error, "softmax/bias": error.sum(axis=0)}

    def _forward(
        self, parameters: Mapping[str, Array], x: Array | list[Array], y: Array
    ) -> tuple[float, int, Array, Array]:
        kernel = parameters["softmax/kernel"]
        features = self.features(x, kernel.dtype)
        logits = features @ kernel + parameters["softmax/bias"]
        logits -= logits.max(axis=1, keepdims=True)  # exp() must not overflow
        classes = y if y.ndim == 1 else y.argmax(axis=1)
        correct = int(np.count_nonzero(logits.argmax(axis=1) == classes))
        probabilities = np.exp(logits)
        norm = probabilities.sum(axis=1, keepdims=True)
        meant = logits[np.arange(len(y)), y] if y.ndim == 1 else np.sum(logits * y, axis=1)
        loss = float(np.sum(np.log(norm[:, 0]) - meant))
        return loss, correct, probabilities / norm, features

    def features(self, x: Array | list[Array], dtype: np.dtype[Any]) -> Array:
        """Inputs of the regression, shape (n, num_features); integers are scaled from 0..255 to 0..1."""
        rows = np.empty((len(x), self.num_features), dtype)
        if isinstance(x, np.ndarray):
            flat = x.reshape(len(x), -1)
            rows[:] = flat[:, self._picked(flat.shape[1])]
        else:
            for row, sample in zip(rows, x, strict=True):
                row[:] = sample.reshape(-1)[self._picked(sample.size)]
        if len(x) and x[0].dtype.kind in "iu":
            rows /= 255
        return rows

    def _picked(self, size: int) -> Array:
        return np.arange(self.num_features) * size // self.num_features


def softmax(input_shape: tuple[int | None, ...], num_classes: int, max_features: int = 256) -> EmulatedModel:
    """Make a softmax regression for the emulated backend.

    Args:
        input_shape: shape of one sample; None where samples differ.
        num_classes: >= 2.
        max_features: most inputs, >= 1, so that a step costs next to nothing.
    """
    if None in input_shape:
        return EmulatedModel(max_features, num_classes)
    return EmulatedModel(min(math.prod(n for n in input_shape if n), max_features), num_classes)
