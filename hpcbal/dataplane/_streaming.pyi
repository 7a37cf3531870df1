"""Copy memory past the caches (C, see _streaming.c)."""

from typing import Any

from numpy.typing import NDArray

STREAMS: bool
"""Whether `copy` uses streaming stores; false on processors other than x86-64."""

def copy(target: NDArray[Any], source: NDArray[Any], /) -> None:
    """Copy the bytes of one C-contiguous array into another, which is not in the same memory.

    Raises:
        ValueError: the sizes differ, the arrays overlap, or one is not C-contiguous.
        BufferError: the target is read-only.
    """
