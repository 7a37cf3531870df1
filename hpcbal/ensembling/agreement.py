"""How often DNNs disagree."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

BLOCK_ITEMS = 2**20
"""At most this many predictions are sorted at once, or one item of all DNNs."""


def disagreement(predicted: Sequence[NDArray[np.int32]]) -> float | None:
    """The share of items for which two DNNs predict different classes, averaged over all pairs of DNNs, 0..1.

    Args:
        predicted: for each DNN the predicted classes, shape (n,), n >= 1.

    Returns: None for fewer than two DNNs.
    """
    num_dnns = len(predicted)
    if num_dnns < 2:
        return None
    num_items = len(predicted[0])
    step = max(1, BLOCK_ITEMS // num_dnns)
    agreeing = 0  # ordered pairs of DNNs, each DNN with itself included
    for start in range(0, num_items, step):
        classes = np.stack([each[start : start + step] for each in predicted]).astype(np.int64)
        classes -= classes.min()
        votes = classes + np.arange(classes.shape[1]) * (classes.max() + 1)  # one number per item and class
        counts = np.unique(votes, return_counts=True)[1]
        agreeing += int(np.square(counts).sum())
    pairs = num_dnns * (num_dnns - 1) * num_items
    return (num_dnns * num_dnns * num_items - agreeing) / pairs
