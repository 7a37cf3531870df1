"""From predictions to answers, which rank computes them, and how often DNNs agree.

An item is what one label is about: a sample, a pixel of a dense prediction, or one label of a multi-label
sample. Probabilities take `num_items * num_classes` numbers, answers three numbers per item.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

Kind = Literal["classes", "labels", "values"]
"""Kind of prediction for an item: one class of several, whether a label applies, or a value."""

TINY = float(np.finfo(np.float64).tiny)
"""Smaller probabilities count as this one, so that their logarithm is finite."""


@dataclass(frozen=True, slots=True)
class Answers:
    """The predictions of a DNN or an ensemble for n items.

    Attributes:
        truth: probability of the right class, float64, shape (n,).
        confidence: probability of the predicted class, float64, shape (n,).
        predicted: the most probable class, int32, shape (n,); the lowest one of equals.
    """

    truth: NDArray[np.float64]
    confidence: NDArray[np.float64]
    predicted: NDArray[np.int32]


def items_of(predictions: NDArray[np.float64], kind: Kind) -> NDArray[np.float64]:
    """Predictions as one row per item.

    Args:
        predictions: for n samples, shape (n, ...).
        kind: what they are.

    Returns:
        classes: probabilities, shape (items, num_classes); items are all axes but the last. labels: the
        probabilities of no and yes, shape (items, 2); items are all axes. values: shape (items, 1); likewise.
    """
    if kind == "classes":
        return predictions.reshape(-1, predictions.shape[-1])
    column = predictions.reshape(-1, 1)
    return column if kind == "values" else np.concatenate([1.0 - column, column], axis=1)


def labels_of(y: NDArray[Any], kind: Kind) -> NDArray[np.float64]:
    """The right class or value of each item, shape (items,); a class may be given by shares of all classes.

    Args:
        y: labels of n samples, shape (n, *label shape).
    """
    if kind == "classes" and y.dtype.kind == "f":
        y = y.argmax(axis=-1)
    return y.reshape(-1).astype(np.float64)


def has_soft_labels(y: NDArray[Any], kind: Kind) -> bool:
    """Whether a label gives shares to several classes, so that `labels_of` keeps only a part of it."""
    return kind == "classes" and y.dtype.kind == "f" and bool((y.max(axis=-1) < 1.0).any())


def items_shape(shape: tuple[int, ...], dtype: str, kind: Kind) -> tuple[int, ...]:
    """The shape in which the items of a sample lie, by the shape and type of its label; see `labels_of`."""
    has_shares = kind == "classes" and np.dtype(dtype).kind == "f"
    return shape[:-1] if has_shares else shape


def items_per_sample(shape: tuple[int, ...], dtype: str, kind: Kind) -> int:
    """How many items a sample has, by the shape and type of its label; see `labels_of`."""
    return int(np.prod(items_shape(shape, dtype, kind), dtype=np.int64))


def predictions_of(rows: NDArray[np.float64], shape: tuple[int, ...], kind: Kind) -> NDArray[np.float64]:
    """The inverse of `items_of`.

    Args:
        rows: one row per item.
        shape: of the prediction for one sample.

    Returns: shape (n, *shape).
    """
    return (rows[:, 1] if kind == "labels" else rows).reshape(-1, *shape)


def y_of(labels: NDArray[np.float64], shape: tuple[int, ...], dtype: str, kind: Kind) -> NDArray[Any]:
    """The inverse of `labels_of` for labels that are not soft.

    Args:
        labels: one per item.
        shape, dtype: of the label of one sample.

    Returns: shape (n, *shape).
    """
    if kind == "classes" and np.dtype(dtype).kind == "f":
        return np.eye(shape[-1], dtype=dtype)[labels.astype(np.int64)].reshape(-1, *shape)
    return labels.astype(dtype).reshape(-1, *shape)


def answers_of(probabilities: NDArray[np.float64], labels: NDArray[np.int64]) -> Answers:
    """The answers in probabilities.

    Args:
        probabilities: shape (items, num_classes), rows sum to 1.
        labels: the right classes, shape (items,).
    """
    rows = np.arange(len(probabilities))
    predicted = probabilities.argmax(axis=1)
    return Answers(probabilities[rows, labels], probabilities[rows, predicted], predicted.astype(np.int32))


def agreeing_pairs(predicted: NDArray[np.int32]) -> int:
    """How many ordered pairs of DNNs predict the same class, summed over items; each DNN agrees with itself.

    Args:
        predicted: classes >= 0, shape (num_dnns, n).
    """
    if not predicted.size:
        return 0
    most = int(predicted.max())
    votes = predicted + np.arange(predicted.shape[1], dtype=np.int64) * (
        most + 1
    )  # one number per item, class
    counts = np.unique(votes, return_counts=True)[1]
    return int(np.square(counts).sum())


def disagreement(agreeing: int, num_dnns: int, num_items: int) -> float | None:
    """The share of items for which two DNNs predict different classes, averaged over all pairs of DNNs.

    Args:
        agreeing: sum of `agreeing_pairs` over all items.

    Returns: 0..1; None for fewer than two DNNs, or without items.
    """
    pairs = num_dnns * (num_dnns - 1) * num_items
    return (num_dnns * num_dnns * num_items - agreeing) / pairs if pairs else None


@dataclass(frozen=True, slots=True)
class Piece:
    """The predictions of one DNN for neighbouring samples.

    Attributes:
        member: index of the DNN.
        start, stop: samples start..stop-1.
    """

    member: int
    start: int
    stop: int


def pieces_of_rank(num_members: int, num_samples: int, rank: int, num_ranks: int) -> tuple[Piece, ...]:
    """The part of one rank: every rank gets equally many predictions, and as few DNNs as possible.

    The samples of the first DNN, then those of the second, and so on are laid on one line, which is cut into
    equal parts. So a rank needs at most two DNNs more than `num_members / num_ranks`, and with fewer DNNs
    than ranks, several ranks share one.

    Args:
        num_members, num_samples: >= 0.
        rank: 0..num_ranks-1.
    """
    total = num_members * num_samples
    first, end = total * rank // num_ranks, total * (rank + 1) // num_ranks
    pieces = []
    while first < end:
        member, start = divmod(first, num_samples)
        stop = min(num_samples, start + end - first)
        pieces.append(Piece(member, start, stop))
        first += stop - start
    return tuple(pieces)
