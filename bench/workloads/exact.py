"""Points and a model whose sums have no rounding errors, for soak_kills.py.

Balancing by measured times splits each step differently in each run. With ordinary numbers, the order of the
additions then changes the last bits of the weights. Here a sample's loss and gradient are computed by
themselves and rounded to multiples of 2**-24, so their sums are exact in float64 in any order. Weights agree
bit by bit exactly if every step trained the same samples, each of them once.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from hpcbal.data.datasets.small_sets import InMemoryDataset
from hpcbal.models.softmax import Array, Arrays, EmulatedModel

GRID = 2.0**24
NUM_FEATURES, NUM_CLASSES = 6, 3


def points(num_samples: int = 160) -> InMemoryDataset:
    """Noisy points (6,) float64 around three centres; the same in every process."""
    rng = np.random.default_rng(1)
    labels = np.arange(num_samples) % NUM_CLASSES
    centres = rng.normal(size=(NUM_CLASSES, NUM_FEATURES))
    return InMemoryDataset("points", centres[labels] + rng.normal(size=(num_samples, NUM_FEATURES)), labels)


class ExactModel(EmulatedModel):
    """Softmax regression whose loss and gradient are sums over samples without rounding errors.

    The gradient of a step is exact if its number of samples is a power of two.
    """

    def loss(self, parameters: Mapping[str, Array], x: Array | list[Array], y: Array) -> tuple[float, int]:
        loss, correct, _ = self.loss_and_gradient(parameters, x, y)
        return loss, correct

    def loss_and_gradient(
        self, parameters: Mapping[str, Array], x: Array | list[Array], y: Array
    ) -> tuple[float, int, Arrays]:
        loss, correct = 0.0, 0
        sums = {name: np.zeros_like(array) for name, array in parameters.items()}
        for index in range(len(y)):
            one = slice(index, index + 1)
            own_loss, own_correct, gradient = super().loss_and_gradient(parameters, x[one], y[one])
            loss += np.round(own_loss * GRID) / GRID
            correct += own_correct
            for name, array in gradient.items():
                sums[name] += np.round(array * GRID) / GRID
        return float(loss), correct, sums


def exact(input_shape: tuple[int | None, ...], num_classes: int) -> ExactModel:
    """Make the model for the emulated backend."""
    return ExactModel(NUM_FEATURES, num_classes)
