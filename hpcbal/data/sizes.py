"""Relative sizes of samples, as a dataset declares them, and the order that makes use of them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hpcbal.errors import DataError, HpcbalError, PolicyError, UserCodeError
from hpcbal.policies.samples import checked_sizes
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
        DataError: if a size is no number, not finite or not above 0, or their number is wrong.
        UserCodeError: if the function raises.
    """
    sizes = getattr(dataset, "sizes", None)
    if sizes is None:
        return None
    num_samples = len(dataset)
    if callable(sizes):
        try:
            sizes = [sizes(sample_id) for sample_id in range(num_samples)]
        except (HpcbalError, KeyboardInterrupt):
            raise
        except BaseException as error:  # a user's code may raise anything
            raise UserCodeError(f"the dataset's sizes: {summary(error)}") from error
    try:
        return checked_sizes(sizes, num_samples)
    except (PolicyError, TypeError, ValueError) as error:
        raise DataError(f"the dataset's attribute 'sizes': {error}") from error
