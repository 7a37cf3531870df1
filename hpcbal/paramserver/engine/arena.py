"""Memory for parameter blocks: neighbours of a table lie side by side; those that move free their pages."""

from __future__ import annotations

import mmap
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hpcbal.paramserver.store.layout import Layout

Release = Callable[[], None]
"""Gives the memory of one block back to the operating system; its values must not be used any more."""


def allocate(layout: Layout, blocks: list[int]) -> Iterator[tuple[int, NDArray[Any], Release]]:
    """Allocate values of blocks.

    Pulls and pushes of a whole table are then one message from and to one piece of memory, and updates one
    operation.

    Args:
        blocks: ascending.

    Yields: each block, its values, shape (num_rows, num_columns), zeros, and how to release them.
    """
    start = 0
    while start < len(blocks):
        stop = start + 1
        table = layout.table_of(blocks[start])
        while stop < len(blocks) and blocks[stop] == blocks[stop - 1] + 1:
            if layout.table_of(blocks[stop]) != table:
                break
            stop += 1
        sizes = [layout.shape_of(block)[1] * table.row_bytes for block in blocks[start:stop]]
        memory = mmap.mmap(-1, max(1, sum(sizes)), flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        offset = 0
        for block, size in zip(blocks[start:stop], sizes, strict=True):
            rows = layout.shape_of(block)[1]
            values: NDArray[Any] = np.ndarray((rows, table.num_columns), table.dtype, memory, offset)
            yield block, values, _release(memory, offset, offset + size)
            offset += size
        start = stop


def _release(memory: mmap.mmap, start: int, stop: int) -> Release:
    first = -(-start // mmap.PAGESIZE) * mmap.PAGESIZE
    last = stop // mmap.PAGESIZE * mmap.PAGESIZE  # pages that it shares with neighbours stay

    def release() -> None:
        if last > first:
            memory.madvise(mmap.MADV_DONTNEED, first, last - first)

    return release
