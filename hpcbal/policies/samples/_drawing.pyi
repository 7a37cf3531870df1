"""Draw the samples of a step as CHRONICA does (C, see _drawing.c)."""

import numpy as np
from numpy.typing import NDArray

def draw(
    sizes: NDArray[np.float64],
    below: NDArray[np.int32],
    bounds: NDArray[np.int64],
    first: NDArray[np.int64],
    left: NDArray[np.int64],
    slopes: NDArray[np.float64],
    launches: NDArray[np.float64],
    worker: int,
    pivot: int,
    taken: NDArray[np.int64],
    ends: NDArray[np.int64],
    /,
) -> None:
    """Draw `len(taken)` samples: the pivot, then one after another for the worker that finishes first.

    Args:
        sizes: of the samples by worker, in ascending order for each, shape (num_places,).
        below: each place itself while its sample is left; else a smaller place. Updated.
        bounds: worker j has the places bounds[j] to bounds[j + 1] - 1, shape (num_workers + 1,).
        first: no sample of the worker is left before this place. Updated.
        left: number of samples of each worker that are left. Updated.
        slopes, launches: seconds per size, and of a step; of each worker.
        worker, pivot: the first sample: its worker, its place.
        taken: written: the places by worker, in the order in which each drew them; not more than are left.
        ends: written: where each worker's places end in `taken`, shape (num_workers,).

    Raises:
        ValueError: the arrays do not fit together, or the pivot is not left.
        BufferError: an array is not C-contiguous, or is read-only.
    """
