"""Push and pull for several data blocks at once, outside of turns: most of them need the same rows."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hpcbal.paramserver.api.columns import IntArray
from hpcbal.paramserver.api.update import Table, Update

ID_BYTES = 8
"""Bytes of the number of a row, int64."""


def size_factor(turn_samples: float, block_samples: int) -> float:
    """How many times the rows of one block may be kept to push or pull those of several together.

    Jobs that share machines are given memory for the rows of a block and for those of a turn (`needs_of`),
    and no turn runs meanwhile.

    Args:
        turn_samples: of one of the worker's turns, >= 0.
        block_samples: of a block, >= 1.
    """
    return 1.0 + min(1.0, turn_samples / block_samples)


class UpdateSum:
    """Adds up updates of blocks, as far as there is memory for their sum.

    Only for apps whose updates add up, see `has_default_update`.

    Args:
        factor: the sum is at most so many times as large as the largest of its updates, >= 1.
    """

    def __init__(self, factor: float) -> None:
        self._factor = factor
        self._sum: dict[str, Update] = {}
        self._largest = 0

    def add(self, updates: Mapping[str, Update]) -> dict[str, Update]:
        """Add the updates of a block, which are not kept.

        Args:
            updates: by table, in the table's type.

        Returns: the sum of those before if there is no room for more; it does not have the new ones.
        """
        before: dict[str, Update] = {}
        largest = max(self._largest, bytes_of(updates))
        rows = {name: _rows_together(self._sum.get(name), update) for name, update in updates.items()}
        others = {name: update for name, update in self._sum.items() if name not in updates}
        together = bytes_of(others) + sum(
            max(_bytes(each, rows[name]) for each in (update, self._sum.get(name, update)))
            for name, update in updates.items()
        )
        if self._sum and together > self._factor * largest:
            before, largest = self.take(), bytes_of(updates)
            rows = {name: update.rows for name, update in updates.items()}
        self._largest = largest
        for name, update in updates.items():
            self._sum[name] = _sum(self._sum.get(name), update, rows[name])
        return before

    def take(self) -> dict[str, Update]:
        """The sum of what has been added since it was last taken; empty if nothing has."""
        found, self._sum, self._largest = self._sum, {}, 0
        return found


def bytes_of(updates: Mapping[str, Update]) -> int:
    """Return the bytes of deltas, and of the numbers of their rows."""
    return sum(_bytes(update, update.rows) for update in updates.values())


def rows_bytes(needs: Mapping[str, IntArray], tables: Mapping[str, Table]) -> int:
    """Return the bytes of rows of sparse tables.

    Args:
        needs: their numbers, by table.
        tables: all tables by name.
    """
    return sum(len(ids) * tables[name].row_bytes for name, ids in needs.items())


def _bytes(update: Update, rows: IntArray | None) -> int:
    """Return the bytes of an update of the same table to other rows."""
    if rows is None:
        return update.deltas.nbytes
    return len(rows) * (ID_BYTES + update.deltas.itemsize * update.deltas.shape[1])


def _rows_together(one: Update | None, other: Update) -> IntArray | None:
    """Rows of the sum of two updates; None: all."""
    if one is None:
        return other.rows
    return None if one.rows is None or other.rows is None else np.union1d(one.rows, other.rows)


def _sum(one: Update | None, other: Update, rows: IntArray | None) -> Update:
    """A sum that has these rows, in arrays of its own or those of the first one."""
    if one is not None and _has_all(one, rows):
        _add(one, other)
        return one
    shape = other.deltas.shape if rows is None else (len(rows), other.deltas.shape[1])
    total = Update(np.zeros(shape, other.deltas.dtype), None if rows is None else rows.copy())
    for each in (one, other):
        if each is not None:
            _add(total, each)
    return total


def _has_all(update: Update, rows: IntArray | None) -> bool:
    """Whether an update has all of these rows, among which its own are; None: all of the table."""
    if update.rows is None or rows is None:
        return update.rows is None
    return len(update.rows) == len(rows)


def _add(total: Update, update: Update) -> None:
    """Add to rows that a sum has."""
    deltas: NDArray[Any] = total.deltas
    if update.rows is None:
        deltas += update.deltas
    else:
        places = update.rows if total.rows is None else np.searchsorted(total.rows, update.rows)
        deltas[places] += update.deltas
