"""Relative sizes and weights of samples, as a dataset declares them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Set
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hpcbal.data.dataset import Dataset
from hpcbal.errors import DataError, HpcbalError, PolicyError, UserCodeError
from hpcbal.policies.samples.task import checked_sizes
from hpcbal.user_code import summary


@dataclass(frozen=True, slots=True)
class SizeOrder:
    """How the training samples of a pass are ordered; see `order_in_windows`.

    Attributes:
        batch_size: samples of a step, >= 1.
        num_batches: batches that are sorted by size together, >= 1; 1: a random order.
    """

    batch_size: int
    num_batches: int


RANDOM_ORDER = SizeOrder(batch_size=1, num_batches=1)


def declared_sizes(dataset: Any) -> NDArray[np.float64] | None:
    """The relative size of each sample, shape (len(dataset),); None if the dataset declares none.

    Args:
        dataset: its optional attribute `sizes` holds one number for each sample, or is a function of the
            sample's id.

    Raises:
        DataError: if a size is no number, not finite, not above 0 or absurdly large, or their number is
            wrong.
        UserCodeError: if the function raises.
    """
    sizes = getattr(dataset, "sizes", None)
    if sizes is None:
        return None
    num_samples = len(dataset)
    if callable(sizes):
        sizes = [_called(sizes, sample_id) for sample_id in range(num_samples)]
    try:
        return checked_sizes(_numbers(sizes), num_samples)
    except (PolicyError, TypeError, ValueError, OverflowError) as error:
        raise DataError(f"the dataset's attribute 'sizes': {error}") from error


def _called(size_of: Callable[[int], Any], sample_id: int) -> Any:
    try:
        return size_of(sample_id)
    except (HpcbalError, KeyboardInterrupt):
        raise
    except BaseException as error:  # a user's code may raise anything
        text = f"the dataset's attribute 'sizes', called for sample {sample_id}: {summary(error)}"
        raise UserCodeError(text) from error


def _numbers(sizes: Any) -> NDArray[Any]:
    """Sizes as an array of numbers: NumPy alone would take None for NaN, and the text '12' for a number."""
    try:
        array = np.asarray(sizes)
    except ValueError:  # such as lists of unequal length
        array = np.empty(0, object)
    if array.dtype.kind in "iuf":
        return array
    if isinstance(sizes, Mapping | Set):  # whose elements are keys, or in no order
        raise PolicyError(f"got a {type(sizes).__name__}, allowed: a number for each sample, in their order")
    values = list(sizes)
    for sample_id, value in enumerate(values):
        if isinstance(value, str | bytes) or not (hasattr(value, "__float__") or hasattr(value, "__index__")):
            raise PolicyError(
                f"size of sample {sample_id}: got {value!r:.100}, allowed: a finite number above 0"
            )
    return np.asarray(values, np.float64)


def declared_weights(dataset: Dataset) -> NDArray[np.float64] | None:
    """The dataset's attribute `sample_weights`, shape (len(dataset),); None if it has none.

    Raises:
        DataError: if they are not one finite number for each sample, 0 or more, some of them above 0.
    """
    given = getattr(dataset, "sample_weights", None)
    if given is None:
        return None
    allowed = f"a number, 0 or more, for each of the {len(dataset)} samples"
    try:
        weights = np.array(given, np.float64)
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
    return weights
