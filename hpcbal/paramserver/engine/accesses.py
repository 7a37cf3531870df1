"""Pulls and pushes at an owner of blocks, until each of their blocks is served."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hpcbal.paramserver.api import IntArray, Table
from hpcbal.paramserver.engine.buffers import view

ALL_ROWS = -1
"""In an entry of a frame: the whole block."""

ShapeOf = Callable[[int], tuple[Table, int]]
"""Returns the table of a parameter block, and its number of rows."""


@dataclass(slots=True)
class Pull:
    """A pull, or what is left of it here.

    Attributes:
        step, share: see `Frame`.
        number: by block, of the worker's last push to it.
        places: rows of sparse blocks.
    """

    worker: int
    request: int
    step: int
    share: int
    number: dict[int, int]
    places: dict[int, IntArray]

    def whole(self, blocks: Iterable[int]) -> list[int]:
        """Return the blocks that are pulled whole."""
        return [block for block in blocks if block not in self.places]

    def in_rows(self, blocks: Iterable[int]) -> list[int]:
        """Return the blocks that hold a pulled row."""
        return [block for block in blocks if block in self.places]


def entries_of(access: Pull | Push, blocks: Iterable[int]) -> list[tuple[int, int, int]]:
    """Return the entries of a frame that forwards these blocks of a pull or push."""
    places = access.places
    return [
        (block, access.number[block], len(places[block]) if block in places else ALL_ROWS) for block in blocks
    ]


@dataclass(slots=True)
class Push:
    """A push whose payload has come.

    Attributes:
        buffer: holds the payload.
        places, deltas, number: by block; blocks without `places` are pushed whole.
        num_open: blocks that are neither applied nor forwarded.
        num_reading: blocks that still read the buffer.
        num_applied: blocks to acknowledge, in one frame.
    """

    worker: int
    request: int
    step: int
    buffer: NDArray[np.uint8]
    places: dict[int, IntArray] = field(default_factory=dict)
    deltas: dict[int, NDArray[Any]] = field(default_factory=dict)
    number: dict[int, int] = field(default_factory=dict)
    num_open: int = 0
    num_reading: int = 0
    num_applied: int = 0

    def parse(self, entries: Sequence[Sequence[int]], shape_of: ShapeOf) -> None:
        """Find what belongs to each block.

        Args:
            entries: of `FrameKind.PUSH`.
        """
        start = 0
        for block, _, rows in entries:
            if rows != ALL_ROWS:
                self.places[block] = view(self.buffer, start, (rows,), "int64")
                start += 8 * rows
        for block, number, rows in entries:
            table, block_rows = shape_of(block)
            count = block_rows if rows == ALL_ROWS else rows
            self.deltas[block] = view(self.buffer, start, (count, table.num_columns), table.dtype)
            start += count * table.row_bytes
            self.number[block] = number
        self.num_open = self.num_reading = len(entries)
