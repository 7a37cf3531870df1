"""A table of parameters: named, two-dimensional, and keyed by row."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np

from hpcbal.errors import InputError

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
