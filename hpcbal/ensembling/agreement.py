"""How often DNNs disagree."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray


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
