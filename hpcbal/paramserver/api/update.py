"""Tables of parameters, keyed by row, and the pushes of a turn: deltas, checked against the tables."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from hpcbal.errors import InputError
from hpcbal.paramserver.api.columns import IntArray

Access = Literal["dense", "sparse"]

DTYPES = ("float64", "float32", "int64", "int32")
"""Types of parameters."""


@dataclass(frozen=True, slots=True)
class Table:
    """An app's declaration of one of its tables.

    Attributes:
        name: unique in the app.
        num_rows: number of keys, >= 1; keys are 0..num_rows-1.
        num_columns: numbers per row, >= 1.
        dtype: one of `DTYPES`.
        access: `dense`: every turn pulls the whole table; `sparse`: a turn pulls the rows that `App.needs`
            names.

    Raises:
        InputError: an attribute is out of range.
    """

    name: str
    num_rows: int
    num_columns: int
    dtype: str = "float64"
    access: Access = "dense"

    def __post_init__(self) -> None:
        if self.num_rows < 1 or self.num_columns < 1:
            raise InputError(
                f"table {self.name!r}: got {self.num_rows} rows of {self.num_columns} numbers, "
                "allowed: at least 1 of each"
            )
        for key, value, allowed in (
            ("dtype", self.dtype, DTYPES),
            ("access", self.access, get_args(Access)),
        ):
            if value not in allowed:
                raise InputError(f"table {self.name!r}: {key}: got {value!r}, allowed: {', '.join(allowed)}")

    @property
    def row_bytes(self) -> int:
        """Bytes of one row."""
        return self.num_columns * np.dtype(self.dtype).itemsize

    @property
    def num_bytes(self) -> int:
        """Bytes of all rows."""
        return self.num_rows * self.row_bytes


def held_bytes(table_bytes: int, staleness: int | None) -> int:
    """Bytes that servers hold for tables.

    Args:
        table_bytes: of their values.
        staleness: 0: `sync`, where any row may have to be kept as it was before a step; None: `async`.
    """
    return 2 * table_bytes if staleness == 0 else table_bytes


class AppError(InputError):
    """An app asked for, or returned, something that does not fit its tables."""


@dataclass(frozen=True, slots=True, eq=False)
class Update:
    """Deltas of one table.

    Attributes:
        deltas: shape (num_rows, num_columns), or (len(rows), num_columns).
        rows: ids of the rows, int64, ascending, each once; None: all rows of a dense table.
    """

    deltas: NDArray[Any]
    rows: IntArray | None = None


Needs = Mapping[str, IntArray]
"""Row ids by sparse table."""

Parameters = Mapping[str, NDArray[Any]]
"""Pulled values by table, not to be changed. Dense: (num_rows, num_columns). Sparse: the rows that
`App.needs` named, in that order."""

Updates = Mapping[str, "Update | NDArray[Any]"]
"""The return value of `App.compute`.

A plain array stands for all rows of a dense table, and for the rows of a sparse one that `App.needs` named.
Tables without an entry are not pushed."""


def checked_needs(needs: Needs, tables: Mapping[str, Table]) -> dict[str, IntArray]:
    """The row ids of every sparse table, as contiguous int64.

    Args:
        needs: what `App.needs` returned; tables that are left out need no rows.
        tables: all tables by name.

    Raises:
        AppError: no mapping; an unknown or dense table; ids that are not ascending, or out of range.
    """
    if not isinstance(needs, Mapping):
        raise AppError(f"needs: got a {type(needs).__name__}, allowed: a mapping of tables to ids of rows")
    for name in needs:
        if name not in tables or tables[name].access != "sparse":
            sparse = ", ".join(table.name for table in tables.values() if table.access == "sparse")
            raise AppError(
                f"needs: got table {name!r}, allowed: the sparse tables ({sparse or 'there is none'})"
            )
    empty = np.empty(0, np.int64)
    return {
        table.name: _checked_rows("needs", table, needs.get(table.name, empty))
        for table in tables.values()
        if table.access == "sparse"
    }


def checked_updates(
    updates: Updates, tables: Mapping[str, Table], needs: Mapping[str, IntArray]
) -> dict[str, Update]:
    """Updates whose deltas are contiguous arrays of the tables' types, those of sparse tables with rows.

    Args:
        updates: what `App.compute` returned, or `App.initial_updates` if not None.
        tables: all tables by name.
        needs: the rows that were pulled, from `checked_needs`.

    Raises:
        AppError: no mapping; an unknown table, a wrong shape or type, rows out of range or not ascending.
    """
    if not isinstance(updates, Mapping):
        raise AppError(
            f"updates: got a {type(updates).__name__}, allowed: a mapping of tables to deltas, maybe empty"
        )
    return {name: _checked(name, update, tables, needs) for name, update in updates.items()}


def _checked(
    name: str, update: Update | NDArray[Any], tables: Mapping[str, Table], needs: Mapping[str, IntArray]
) -> Update:
    if name not in tables:
        raise AppError(f"updates: got table {name!r}, allowed: {', '.join(tables)}")
    table = tables[name]
    if not isinstance(update, Update):
        update = Update(update, needs[name] if table.access == "sparse" else None)
        rows = update.rows
    else:
        rows = None if update.rows is None else _checked_rows("updates", table, update.rows)
        if rows is None and table.access == "sparse":
            rows = np.arange(table.num_rows)
    deltas = np.asarray(update.deltas)
    shape = (table.num_rows if rows is None else len(rows), table.num_columns)
    if deltas.shape != shape:
        raise AppError(f"updates of table {name!r}: got deltas of shape {deltas.shape}, expected {shape}")
    if not np.can_cast(deltas.dtype, table.dtype, "same_kind"):
        raise AppError(
            f"updates of table {name!r}: got deltas of type {deltas.dtype}, "
            f"allowed: what fits the table's {table.dtype}"
        )
    return Update(np.ascontiguousarray(deltas, table.dtype), rows)


def _checked_rows(where: str, table: Table, rows: IntArray) -> IntArray:
    rows = np.asarray(rows)
    if rows.ndim != 1 or (rows.size and rows.dtype.kind not in "iu"):
        raise AppError(
            f"{where} of table {table.name!r}: got rows of shape {rows.shape} and type {rows.dtype}, "
            "allowed: a list of integers"
        )
    rows = np.ascontiguousarray(rows, np.int64)
    if rows.size and (rows.min() < 0 or rows.max() >= table.num_rows):
        wrong = int(rows.min()) if rows.min() < 0 else int(rows.max())
        raise AppError(
            f"{where} of table {table.name!r}: got row {wrong}, allowed: 0 to {table.num_rows - 1}"
        )
    if (rows[1:] <= rows[:-1]).any():
        raise AppError(
            f"{where} of table {table.name!r}: rows must be ascending, each once; np.unique returns them so"
        )
    return rows
