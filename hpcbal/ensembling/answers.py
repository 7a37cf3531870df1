"""From the outputs of a model to probabilities, and from probabilities to one answer per item.

An item is what one label is about: a sample, a pixel of a dense prediction, or one label of a multi-label
sample. Probabilities take `num_items * num_classes` numbers, answers three numbers per item.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

Link = Literal["softmax", "sigmoid", "identity"]
"""What turns a model's outputs into predictions: a softmax over the last axis, a sigmoid of each number, or
nothing, if the outputs are the predicted values."""

TINY = float(np.finfo(np.float64).tiny)
"""Smaller probabilities count as this one, so that their logarithm is finite."""


@dataclass(frozen=True, slots=True)
class Answers:
    """What a DNN or an ensemble predicts for n items.

    Attributes:
        truth: probability of the right class, float64, shape (n,).
        confidence: probability of the predicted class, float64, shape (n,).
        predicted: the most probable class, int32, shape (n,); the lowest one of equals.
    """

    truth: NDArray[np.float64]
    confidence: NDArray[np.float64]
    predicted: NDArray[np.int32]

    def __len__(self) -> int:
        return len(self.predicted)


def items_of(outputs: NDArray[np.float32], link: Link) -> NDArray[np.float64]:
    """Outputs as one row per item: probabilities of the classes, or the values.

    Args:
        outputs: what the model returns for n samples, shape (n, ...).
        link: what they are the input of.

    Returns:
        softmax: shape (items, num_classes), items are all axes but the last. sigmoid: shape (items, 2), the
        probabilities of no and yes, items are all axes. identity: shape (items, 1), items are all axes.
    """
    numbers = np.asarray(outputs, np.float64)
    if link == "identity":
        return numbers.reshape(-1, 1)
    if link == "sigmoid":
        logits = numbers.reshape(-1, 1)
        numbers = np.concatenate([np.zeros_like(logits), logits], axis=1)  # a softmax over (0, z)
    rows = numbers.reshape(-1, numbers.shape[-1])
    powers = np.exp(rows - rows.max(axis=1, keepdims=True))
    return np.asarray(powers / powers.sum(axis=1, keepdims=True))


def answers_of(probabilities: NDArray[np.float64], labels: NDArray[np.int64]) -> Answers:
    """The answers in probabilities.

    Args:
        probabilities: shape (items, num_classes), rows sum to 1.
        labels: the right classes, shape (items,).
    """
    rows = np.arange(len(probabilities))
    predicted = probabilities.argmax(axis=1)
    return Answers(probabilities[rows, labels], probabilities[rows, predicted], predicted.astype(np.int32))
