"""Write samples past the caches, so that no line has to be taken away from the cores that have read it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

Copy = Callable[[NDArray[Any], NDArray[Any]], None]
"""Writes the second array over the first."""

MIN_BYTES = 4096
"""Smaller arrays are written with NumPy.

Where writer and reader sit on cores without a common cache, streaming took 0.4 us for 2 KB (NumPy 1.0),
0.5 us for 4 KB (2.0) and 1.4 us for 27 KB (12). On one core, with nothing to take away, it took 0.7 us
more at most.
"""


def _find_copy() -> Copy | None:
    """The compiled copy; None where it was not built, or the processor has no streaming stores for it."""
    try:
        from hpcbal.dataplane import _streaming
    except ImportError:  # installed without a compiler, or built for another machine
        return None
    return _streaming.copy if _streaming.STREAMS else None


_copy = _find_copy()


def method() -> str:
    """How large samples are written into the ring: "streaming stores" or "NumPy"; for logs."""
    return "NumPy" if _copy is None else "streaming stores"


def write(target: NDArray[np.generic], values: NDArray[np.generic]) -> None:
    """Write `values` over `target`, as `target[...] = values` does.

    Past the caches where that pays: C-contiguous arrays of the same type and shape, of at least `MIN_BYTES`,
    in different memory. What other processes see is ordered as with plain stores.

    Args:
        target: writable, of numbers, at least one axis.
        values: of a shape that broadcasts to that of `target`.

    Raises:
        ValueError: the shapes do not fit, or the arrays overlap.
    """
    if (
        _copy is not None
        and target.nbytes >= MIN_BYTES
        and values.dtype == target.dtype
        and values.shape == target.shape
        and values.flags.c_contiguous
        and target.flags.c_contiguous
    ):
        _copy(target, values)
    else:
        target[...] = values
