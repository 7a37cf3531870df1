"""A data block on disk: parts of it are read for a turn, and the state that the turn has changed goes back.

An epoch takes the samples of a block in an order of its own, a slice in each step. Where there are many
steps, the block is rearranged into this order when the epoch begins. Then each slice is one piece of the
file, and every byte is read once. Otherwise the block would be read in each step, because a slice is spread
all over it.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hpcbal.paramserver.api.batch import DataBlock
from hpcbal.paramserver.api.columns import Column, Columns, IntArray, Ragged, gather, num_bytes_of
from hpcbal.paramserver.spilling.disk import SpillFile


@dataclass(frozen=True, slots=True, eq=False)
class Window:
    """A part of a block that has been read.

    Attributes:
        block: it, as a data block of only these samples.
        places: where in it the samples are that were asked for, in their order.
        start: where in the file's order it begins.
    """

    block: DataBlock
    places: IntArray
    start: int

    @property
    def num_bytes(self) -> int:
        """Bytes of columns and state."""
        return num_bytes_of(self.block.columns) + num_bytes_of(self.block.state)

    def only_state(self) -> Window:
        """The same without columns."""
        block = self.block
        kept = DataBlock(block.number, block.first_sample, {}, block.state, block.rows)
        return Window(kept, self.places, self.start)


@dataclass(frozen=True, slots=True)
class _Stored:
    """Where the values of a column are.

    Attributes:
        at: first byte in the file.
        shape: of a value, or of a sample's row.
        lists: number of its offsets; None: the column is not ragged.
    """

    at: int
    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    lists: int | None

    @property
    def row_bytes(self) -> int:
        return self.dtype.itemsize * int(np.prod(self.shape, dtype=np.int64))


class StoredBlock:
    """A data block in a file; any thread may use it, one at a time.

    Args:
        file: where it goes.
        block: what is written; the whole block, in order.

    Attributes:
        number, first_sample, size: of the block.
        epoch: in whose order its samples are; None: in order of their ids.
        num_bytes: on disk.
        state_bytes: of them, what turns may change.

    Raises:
        SpillError: there is no space.
    """

    def __init__(self, file: SpillFile, block: DataBlock) -> None:
        self.number, self.first_sample = block.number, block.first_sample
        self.size = len(next(iter(block.columns.values())))
        self._file, self._lock = file, threading.RLock()
        self.epoch: int | None = None
        self._order: IntArray | None = None  # of samples in the file; None: as they are
        self._offsets: list[IntArray] = []  # in order of the file
        self.state_bytes = num_bytes_of(block.state)
        self.num_bytes = num_bytes_of(block.columns) + self.state_bytes
        start = file.reserve(sum(_values(each).nbytes for each in _all(block)))
        ids: dict[int, int] = {}
        parts: list[dict[str, _Stored]] = []
        for columns in (block.columns, block.state):
            parts.append({})
            for name, column in columns.items():
                values, lists = _values(column), None
                if isinstance(column, Ragged):
                    lists = ids.setdefault(id(column.offsets), len(self._offsets))
                    if lists == len(self._offsets):
                        self._offsets.append(column.offsets)
                parts[-1][name] = _Stored(start, values.dtype, values.shape[1:], lists)
                start += values.nbytes
        self._columns, self._state = parts
        self._write(block.columns, self._columns, 0, self.size)
        self._write(block.state, self._state, 0, self.size)

    @property
    def memory_bytes(self) -> int:
        """Bytes that stay in memory: where lists begin and end."""
        return sum(each.nbytes for each in self._offsets)

    @property
    def has_state(self) -> bool:
        """Whether turns may change anything of it."""
        return bool(self._state)

    def rearrange(self, epoch: int, order: IntArray) -> None:
        """Put the samples into the order in which an epoch takes them.

        Args:
            epoch: its number.
            order: shape (size,), numbers of samples.
        """
        with self._lock:
            if self.epoch == epoch:
                return
            columns, state = self._read(0, self.size)
            stored = DataBlock(self.number, self.first_sample, columns, state)
            columns, state = _gathered(stored, order if self._order is None else _inverse(self._order)[order])
            for parts, found in ((self._columns, columns), (self._state, state)):
                for name, each in parts.items():
                    column = found[name]
                    if isinstance(column, Ragged) and each.lists is not None:
                        self._offsets[each.lists] = column.offsets
            self._order, self.epoch = order, epoch
            self._write(columns, self._columns, 0, self.size)
            self._write(state, self._state, 0, self.size)

    def window(self, epoch: int, start: int, samples: IntArray) -> Window:
        """Read samples.

        Args:
            epoch: of the turn.
            start: position of the first one in the epoch's order.
            samples: their numbers in this order, at least one.
        """
        with self._lock:
            if self._order is None:
                positions = samples
            elif self.epoch == epoch:
                positions = np.arange(start, start + len(samples))
            else:
                positions = _inverse(self._order)[samples]
            first, last = int(positions.min()), int(positions.max()) + 1
            rows = np.arange(first, last) if self._order is None else self._order[first:last]
            columns, state = self._read(first, last)
            block = DataBlock(self.number, self.first_sample, columns, state, rows)
            return Window(block, positions - first, first)

    def write_state(self, window: Window) -> None:
        """Write back the state of a part that `window` has read; no `rearrange` may have been in between."""
        with self._lock:
            count = len(window.block.rows) if window.block.rows is not None else 0
            self._write(window.block.state, self._state, window.start, window.start + count)

    @contextmanager
    def changing(self, epoch: int, start: int, samples: IntArray) -> Iterator[Window]:
        """Read samples, see `window`, and write their state back at the end; nobody reads them meanwhile."""
        with self._lock:
            window = self.window(epoch, start, samples)
            yield window
            self.write_state(window)

    def only_state(self) -> DataBlock:
        """The state of all samples, in order of their ids, without columns."""
        with self._lock:
            _, state = self._read(0, self.size, columns=False)
            stored = DataBlock(self.number, self.first_sample, {}, state)
            if self._order is not None and state:
                _, state = _gathered(stored, _inverse(self._order))
            return DataBlock(self.number, self.first_sample, {}, state)

    def whole(self) -> DataBlock:
        """Read all samples, in order of their ids."""
        with self._lock:
            return self._whole()

    def store_again(self, block: DataBlock) -> None:
        """The block has been in memory, and goes back to disk: only its state may have changed."""
        with self._lock:
            if self._state:
                _, state = _gathered(block, np.arange(self.size) if self._order is None else self._order)
                self._write(state, self._state, 0, self.size)

    def _whole(self) -> DataBlock:
        columns, state = self._read(0, self.size)
        if self._order is not None:
            stored = DataBlock(self.number, self.first_sample, columns, state)
            columns, state = _gathered(stored, _inverse(self._order))
        return DataBlock(self.number, self.first_sample, columns, state)

    def _read(self, first: int, last: int, *, columns: bool = True) -> tuple[Columns, Columns]:
        offsets = [each[first : last + 1] - each[first] for each in self._offsets]
        parts: list[dict[str, Column]] = []
        places: list[tuple[NDArray[Any], int]] = []
        for stored in (self._columns, self._state):
            parts.append({})
            if stored is self._columns and not columns:
                continue
            for name, each in stored.items():
                begin, end = (first, last) if each.lists is None else self._offsets[each.lists][[first, last]]
                values = np.empty((int(end) - int(begin), *each.shape), each.dtype)
                places.append((values, each.at + int(begin) * each.row_bytes))
                parts[-1][name] = values if each.lists is None else Ragged(values, offsets[each.lists])
        with self._file.pace_reading(sum(values.nbytes for values, _ in places)):
            for values, at in places:
                self._file.read(values, at)
        return parts[0], parts[1]

    def _write(self, columns: Columns, stored: dict[str, _Stored], first: int, last: int) -> None:
        num_bytes = 0
        for name, each in stored.items():
            values = _values(columns[name])
            begin = first if each.lists is None else int(self._offsets[each.lists][first])
            self._file.write(values.astype(each.dtype, copy=False), each.at + begin * each.row_bytes)
            num_bytes += values.nbytes
        # Other jobs may be kept waiting by a block that makes room for them, so nobody waits for writes.
        self._file.pace_writing(num_bytes)


def _all(block: DataBlock) -> list[Column]:
    return [*block.columns.values(), *block.state.values()]


def _values(column: Column) -> NDArray[Any]:
    return column.values if isinstance(column, Ragged) else column


def _gathered(block: DataBlock, order: IntArray) -> tuple[Columns, Columns]:
    """Columns and state with samples in another order; what shares offsets shares them afterwards."""
    joined = gather([({**block.columns, **{f"/{k}": v for k, v in block.state.items()}}, order)], {})
    columns = {name: joined[name] for name in block.columns}
    return columns, {name: joined[f"/{name}"] for name in block.state}


def _inverse(order: IntArray) -> IntArray:
    inverse = np.empty_like(order)
    inverse[order] = np.arange(len(order))
    return inverse
