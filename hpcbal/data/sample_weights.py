"""How much each sample counts in the loss, as a dataset declares it."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from hpcbal.data.dataset import Dataset
from hpcbal.errors import DataError


def declared_weights(dataset: Dataset) -> NDArray[np.float32] | None:
    """The dataset's attribute `sample_weights`, shape (len(dataset),); None if it has none.

    Raises:
        DataError: if they are not one finite number for each sample, 0 or more, some of them above 0.
    """
    given = getattr(dataset, "sample_weights", None)
    if given is None:
        return None
    allowed = f"a number, 0 or more, for each of the {len(dataset)} samples"
    try:
        weights = np.asarray(given, np.float64)
    except (TypeError, ValueError):
        raise DataError(
            f"data.dataset: sample_weights is a {type(given).__name__}, allowed: {allowed}"
        ) from None
    if weights.shape != (len(dataset),):
        raise DataError(f"data.dataset: sample_weights has shape {weights.shape}, allowed: {allowed}")
    wrong = np.flatnonzero(~(np.isfinite(weights) & (weights >= 0.0)))
    if len(wrong):
        raise DataError(
            f"data.dataset: sample_weights of sample {wrong[0]} is {weights[wrong[0]]:g}, allowed: {allowed}"
        )
    if not weights.any():
        raise DataError("data.dataset: all sample_weights are 0, so there is nothing to learn")
    return weights.astype(np.float32)
