"""A parameter block at its owner, its memory, and what it was before the step that is changing it."""

from __future__ import annotations

import mmap
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hpcbal.paramserver.api.columns import IntArray
from hpcbal.paramserver.store.layout import Layout
from hpcbal.paramserver.worker.worker import BEFORE_ALL_STEPS


class HeldBlock:
    """Values of a parameter block, changed in place.

    In `sync`, a pull of step s must not see updates of step s, wherever they come from. Updates are applied
    when they come all the same. If a pull of the same step may still follow, the rows that an update touches
    are kept as they were before.

    Attributes:
        values: shape (num_rows, num_columns).
        release: called when the block has moved away and nothing reads the values any more.
        evaluated: the last number of epochs after which terms of the objective were computed from the values.
        step: the last step whose updates are in the values.
    """

    __slots__ = (
        "_before",
        "_has_all",
        "_has_rows",
        "_kept",
        "_pulled",
        "_pulled_step",
        "evaluated",
        "release",
        "step",
        "values",
    )

    def __init__(self, values: NDArray[Any], evaluated: int = 0) -> None:
        self.values = values
        self.release: Callable[[], None] = _nothing
        self.evaluated = evaluated
        self.step = BEFORE_ALL_STEPS
        self._before: NDArray[Any] | None = None  # rows as they were, where they are kept
        self._kept: NDArray[np.bool_] | None = None
        self._has_rows = self._has_all = False
        self._pulled_step, self._pulled = BEFORE_ALL_STEPS, 0

    def note_pull(self, step: int, share: int) -> None:
        """Count how many data blocks' turns of a step have pulled the whole block."""
        if step != self._pulled_step:
            self._pulled_step, self._pulled = step, 0
        self._pulled += share

    def before_update(self, step: int, places: IntArray | None, num_data_blocks: int) -> bool:
        """Keep what an update will change, if a pull of the same step may follow.

        Args:
            step: of the update.
            places: rows that it changes, each once; None: all.
            num_data_blocks: in all. If the turns of all of them have pulled the step, no pull follows.

        Returns: whether anything is kept for pulls of this step.
        """
        if step != self.step:
            self.step = step
            if self._has_rows and self._kept is not None:
                self._kept[:] = False
            self._has_rows = self._has_all = False
        if self._has_all or (step == self._pulled_step and self._pulled == num_data_blocks):
            return self._has_all or self._has_rows
        if self._before is None:
            self._before = np.empty_like(self.values)
        if places is None:
            if self._has_rows:
                assert self._kept is not None
                np.copyto(self._before, self.values, where=~self._kept[:, np.newaxis])
            else:
                np.copyto(self._before, self.values)
            self._has_all = True
            return True
        if self._kept is None:
            self._kept = np.zeros(len(self.values), bool)
        fresh = places[~self._kept[places]]
        self._before[fresh] = self.values[fresh]
        self._kept[fresh] = True
        self._has_rows = True
        return True

    def whole_at(self, step: int) -> tuple[NDArray[Any], bool]:
        """The values before a step, and whether they are those that updates change."""
        if step == self.step and (self._has_all or self._has_rows):
            assert self._before is not None
            if self._has_all:
                return self._before, False
            assert self._kept is not None
            return np.where(self._kept[:, np.newaxis], self._before, self.values), False
        return self.values, True

    def rows_at(self, step: int, places: IntArray, out: NDArray[Any]) -> None:
        """Write rows as they were before a step into `out`, shape (len(places), num_columns)."""
        if step == self.step and self._has_all:
            assert self._before is not None
            self._before.take(places, axis=0, out=out, mode="clip")
            return
        self.values.take(places, axis=0, out=out, mode="clip")
        if step == self.step and self._has_rows:
            assert self._kept is not None
            assert self._before is not None
            changed = np.flatnonzero(self._kept[places])
            out[changed] = self._before[places[changed]]

    def kept(self) -> tuple[IntArray, NDArray[Any]]:
        """Places of rows that are kept as they were before the step, and these rows."""
        if self._has_all:
            assert self._before is not None
            return np.arange(len(self.values)), self._before
        if self._has_rows:
            assert self._kept is not None
            assert self._before is not None
            places = np.flatnonzero(self._kept)
            return places, self._before[places]
        return np.empty(0, np.int64), self.values[:0]

    def restore_kept(self, step: int, places: IntArray, rows: NDArray[Any]) -> None:
        """Take over from another owner what `kept` returned there."""
        self.step = step
        if len(places):
            self._before = np.empty_like(self.values)
            self._before[places] = rows
            self._kept = np.zeros(len(self.values), bool)
            self._kept[places] = True
            self._has_rows = True


def _nothing() -> None:
    pass


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
