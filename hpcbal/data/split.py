"""Choose which samples train, validate or test: the dataset's own split, or a seeded one."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from hpcbal.data.dataset import Dataset
from hpcbal.errors import DataError

_STREAM = 0x591137
"""Separates the split's random stream from other streams with the same seed."""

_TEST_STREAM = 0x7E57
"""The same for the choice of test samples."""

_DRAWN_STREAM = 0xD4A3
"""The same for the choice of a few samples."""

NONE = np.zeros(0, np.int64)


def ids_for_test(dataset: Dataset, seed: int, test_fraction: float) -> NDArray[np.int64]:
    """Choose the samples that no DNN sees in training or validation; sorted.

    Args:
        dataset: its `validation_ids`, if it has any, are never chosen.
        seed: seed of the run, >= 0.
        test_fraction: of the samples that may be chosen, in [0, 1); their number is rounded to the nearest
            integer. 0: none.

    Raises:
        DataError: if none would be chosen although some were requested, or the dataset's own ids are wrong.
    """
    if test_fraction == 0.0:
        return NONE
    own = getattr(dataset, "validation_ids", None)
    is_free = np.ones(len(dataset), bool)
    if own is not None:
        is_free[_check_own(np.asarray(own), len(dataset))] = False
    free = np.flatnonzero(is_free)
    num_test = round(len(free) * test_fraction)
    if num_test < 1 or num_test >= len(free):
        left = "none for the test" if num_test < 1 else "none for training"
        some = f"at least {1 / len(free):.3g} and below 1, or " if len(free) > 1 else ""
        raise DataError(
            f"data.test_fraction: got {test_fraction}, but that leaves {left} of {_samples(len(free))}; "
            f"allowed: {some}0 for no test samples"
        )
    generator = np.random.Generator(np.random.Philox(np.random.SeedSequence((seed, _TEST_STREAM))))
    return np.sort(free[generator.permutation(len(free))[:num_test]]).astype(np.int64)


def split_ids(
    dataset: Dataset, seed: int, validation_fraction: float, for_test: NDArray[np.int64] = NONE
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Split the sample ids of a dataset; both parts are sorted.

    Args:
        dataset: its `validation_ids` decide, if it has any.
        seed: seed of the run, >= 0.
        validation_fraction: in [0, 1); the number of validation samples is rounded to the nearest integer.
        for_test: ids that are in neither part, from `ids_for_test`.

    Returns: training ids and validation ids; together all ids but those for the test. At least one is for
        training; none is for validation only if the fraction is 0.

    Raises:
        DataError: if one part would be empty, or the dataset's own ids are not valid.
    """
    num_samples = len(dataset)
    own = getattr(dataset, "validation_ids", None)
    is_training = np.ones(num_samples, bool)
    is_training[for_test] = False
    if own is not None:
        validation = _check_own(np.asarray(own), num_samples)
    else:
        num_validation = _num_held_out(num_samples, validation_fraction, len(for_test))
        generator = np.random.Generator(np.random.Philox(np.random.SeedSequence((seed, _STREAM))))
        order = generator.permutation(num_samples)
        validation = np.sort(order[is_training[order]][:num_validation]).astype(np.int64)
    is_training[validation] = False
    return np.flatnonzero(is_training).astype(np.int64), validation


def drawn_ids(
    training: NDArray[np.int64], validation: NDArray[np.int64], seed: int, most: int | None
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Draw at most `most` samples from both parts, in proportion; sorted.

    Args:
        most: at least 2: one is for training, and one for validation if there are such samples; None: all.
    """
    numbers = numbers_drawn(len(training), len(validation), most)
    if numbers == (len(training), len(validation)):
        return training, validation
    generator = np.random.Generator(np.random.Philox(np.random.SeedSequence((seed, _DRAWN_STREAM))))
    first, second = (
        np.sort(generator.permutation(ids)[:number])
        for ids, number in zip((training, validation), numbers, strict=True)
    )
    return first, second


def numbers_drawn(num_training: int, num_validation: int, most: int | None) -> tuple[int, int]:
    """Return how many samples `drawn_ids` draws from parts of these sizes."""
    num_samples = num_training + num_validation
    if most is None or num_samples <= most:
        return num_training, num_validation
    validation = min(max(round(most * num_validation / num_samples), 1), most - 1, num_validation)
    return most - validation, validation


def _num_held_out(num_samples: int, fraction: float, num_test: int) -> int:
    if not 0 <= fraction < 1:
        raise DataError(f"data.validation_fraction: got {fraction}, allowed: 0 or more, and below 1")
    num_validation = round(num_samples * fraction)
    if num_validation < 1 and fraction > 0:
        some = f"at least {1 / num_samples:.3g}, or " if num_samples > 1 else ""
        raise DataError(
            f"data.validation_fraction: got {fraction}, but that leaves none of {_samples(num_samples)} for "
            f"validation; allowed: {some}0 for no validation"
        )
    if num_validation >= num_samples - num_test:
        beside = f" beside {num_test} for the test" if num_test else ""
        raise DataError(
            f"data.validation_fraction: got {fraction}, but that leaves none of {_samples(num_samples)} for "
            f"training{beside}; lower it, or add samples"
        )
    return num_validation


def _samples(number: int) -> str:
    return "1 sample" if number == 1 else f"{number} samples"


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
