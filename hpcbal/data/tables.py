"""Tables and columns of other libraries (pandas, Polars, Arrow): rows by their place.

pandas looks a number up in its index, and tables look it up among their columns, so `given[number]` would be
another row, or none. No library is imported to find out: these objects are known by what they can do.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from hpcbal.data.dataset import UnusableSampleError
from hpcbal.data.items import numbers, stacked


def is_table(given: Any) -> bool:
    """Whether this has rows, which its length counts, and named columns."""
    is_known = hasattr(given, "columns") and (hasattr(given, "to_numpy") or hasattr(given, "to_pandas"))
    return is_known and len(getattr(given, "shape", ())) == 2


def by_place(given: Any) -> Any:
    """Return an object whose `[number]` is the row at this place: arrays of tables and of pandas' columns.

    Returns: for a table of n rows an array (n, columns), in the type of the columns with a fraction, if any;
        for a column an array (n,); everything else as it is.

    Raises:
        UnusableSampleError: if a column of a table holds something other than numbers.
    """
    if is_table(given):
        if not len(given.columns):
            raise UnusableSampleError("a table without columns")
        return stacked([_numbers_of(name, column) for name, column in _columns_of(given)])
    # pandas and the libraries like it, or Arrow, whose elements are no numbers
    return _array_of(given) if hasattr(given, "iloc") or hasattr(given, "to_pylist") else given


class Table:
    """The rows of a table as items: dicts with a value of each column.

    Attributes:
        columns: an array by name.

    Args:
        given: a table, see `is_table`.

    Raises:
        UnusableSampleError: if two columns have the same name.
    """

    def __init__(self, given: Any) -> None:
        names = _names_of(given)
        twice = [name for place, name in enumerate(names) if name in names[:place]]
        if twice:
            raise UnusableSampleError(f"a table with several columns {twice[0]!r}, allowed: one of each name")
        self._length = len(given)
        self.columns = {name: _array_of(column) for name, column in _columns_of(given)}

    def __len__(self) -> int:
        return self._length

    def __getitem__(self, number: int) -> dict[Any, Any]:
        return {name: column[number] for name, column in self.columns.items()}


def _names_of(table: Any) -> list[Any]:
    return list(getattr(table, "column_names", table.columns))  # of Arrow, and of all others


def _columns_of(table: Any) -> list[tuple[Any, Any]]:
    """Names and columns; names may occur twice in pandas."""
    if hasattr(table, "iloc"):
        return [(name, table.iloc[:, place]) for place, name in enumerate(_names_of(table))]
    column_of = table.get_column if hasattr(table, "get_column") else table.column
    return [(name, column_of(name)) for name in _names_of(table)]


def _array_of(column: Any) -> NDArray[Any]:
    array: NDArray[Any] = column.to_numpy() if hasattr(column, "iloc") else np.asarray(column)
    return array


def _numbers_of(name: Any, column: Any) -> NDArray[Any]:
    array = _array_of(column)
    try:
        return numbers(list(array) if array.dtype == object else array)
    except UnusableSampleError:
        others = {type(each).__name__: 0 for each in array if not isinstance(each, int | float | np.number)}
        held = ", ".join(others) or array.dtype
        raise UnusableSampleError(f"column {name!r} holds {held}, allowed: numbers") from None
