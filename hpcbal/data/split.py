"""Choose which samples train and which validate: the dataset's own split, or a seeded one."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from hpcbal.data.dataset import Dataset
from hpcbal.errors import DataError

_STREAM = 0x591137
"""Separates the split's random stream from other streams with the same seed."""


def split_ids(
    dataset: Dataset, seed: int, validation_fraction: float
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Split the sample ids of a dataset; both parts are sorted.

    Args:
        dataset: its `validation_ids` decide, if it has any.
        seed: seed of the run, >= 0.
        validation_fraction: in [0, 1); the number of validation samples is rounded to the nearest integer.

    Returns: training ids and validation ids; together all ids. At least one is for training; none is for
        validation only if the fraction is 0.

    Raises:
        DataError: if one part would be empty, or the dataset's own ids are not valid.
    """
    num_samples = len(dataset)
    own = getattr(dataset, "validation_ids", None)
    if own is not None:
        validation = _check_own(np.asarray(own), num_samples)
    else:
        num_validation = _num_held_out(num_samples, validation_fraction)
        generator = np.random.Generator(np.random.Philox(np.random.SeedSequence((seed, _STREAM))))
        validation = np.sort(generator.permutation(num_samples)[:num_validation]).astype(np.int64)
    is_training = np.ones(num_samples, bool)
    is_training[validation] = False
    return np.flatnonzero(is_training).astype(np.int64), validation


def _num_held_out(num_samples: int, fraction: float) -> int:
    if not 0 <= fraction < 1:
        raise DataError(f"data.validation_fraction: got {fraction}, allowed: 0 or more, and below 1")
    num_validation = round(num_samples * fraction)
    if num_validation < 1 and fraction > 0:
        raise DataError(
            f"data.validation_fraction: got {fraction}, but that leaves none of {num_samples} samples for "
            f"validation; allowed: at least {1 / num_samples:.3g}, or 0 for no validation"
        )
    if num_validation >= num_samples:
        raise DataError(
            f"data.validation_fraction: got {fraction}, but that leaves none of {num_samples} samples for "
            "training; lower it, or add samples"
        )
    return num_validation


def _check_own(ids: NDArray[np.int64], num_samples: int) -> NDArray[np.int64]:
    if ids.ndim != 1 or ids.dtype.kind not in "iu":
        raise DataError(
            f"the dataset's validation_ids: got shape {ids.shape} of {ids.dtype}, "
            "allowed: a list of sample ids"
        )
    unique = np.unique(ids).astype(np.int64)
    if not len(unique) or unique[0] < 0 or unique[-1] >= num_samples or len(unique) != len(ids):
        raise DataError(
            f"the dataset's validation_ids: got {len(ids)} ids, allowed: at least 1, each once, within "
            f"0..{num_samples - 1}"
        )
    if len(unique) == num_samples:
        raise DataError("the dataset's validation_ids contain every sample: none is left for training")
    return unique
