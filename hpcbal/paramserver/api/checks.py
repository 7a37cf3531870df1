"""Check what a user's dataset and app return, before the engine relies on it, and name what they raise."""

from __future__ import annotations

from collections.abc import Mapping
from types import TracebackType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hpcbal.errors import HpcbalError, UserCodeError
from hpcbal.paramserver.api.columns import Columns, Ragged
from hpcbal.paramserver.api.update import AppError, Table
from hpcbal.user_code import is_ctrl_c, summary

KINDS = "biufcmMSU"
"""Kinds of types whose values can be sent and saved as they lie in memory; see `numpy.dtype.kind`."""


def checked_columns(where: str, columns: Any, num_samples: int, *, least: int = 0) -> Columns:
    """Columns that hold so many samples.

    Args:
        where: what returned them, such as `source.read`.
        columns: what it returned.
        num_samples: that each column must hold.
        least: columns that there must be.

    Raises:
        AppError: no mapping, too few columns, or one that is no array or holds another number of samples.
    """
    if not isinstance(columns, Mapping) or len(columns) < least:
        got = f"{len(columns)} columns" if isinstance(columns, Mapping) else f"a {type(columns).__name__}"
        wanted = "at least one array" if least else "arrays"
        raise AppError(f"{where}: got {got}, allowed: a mapping of names to {wanted}")
    for name, column in columns.items():
        _check_column(f"{where}: column {name!r}", column, num_samples)
    return columns


def _check_column(where: str, column: Any, num_samples: int) -> None:
    if isinstance(column, Ragged):
        offsets = column.offsets
        is_whole = offsets.ndim == 1 and len(offsets) > 0 and offsets[0] == 0
        if not is_whole or (np.diff(offsets) < 0).any() or offsets[-1] != len(column.values):
            raise AppError(
                f"{where}: got offsets that do not cut {len(column.values)} values into lists, allowed: from "
                "0, ascending, to the number of values"
            )
    elif not isinstance(column, np.ndarray) or column.ndim < 1:
        raise AppError(f"{where}: got a {type(column).__name__}, allowed: an array or a Ragged")
    values = column.values if isinstance(column, Ragged) else column
    if values.dtype.kind not in KINDS:
        raise AppError(
            f"{where}: got values of type {values.dtype}, allowed: numbers, booleans, times, text or bytes "
            "of fixed length; what has several fields goes into a column each"
        )
    if len(column) != num_samples:
        raise AppError(f"{where}: got {len(column)} samples, expected {num_samples}")


def checked_change(state: Columns, of_block: Columns, num_samples: int) -> None:
    """Check that a turn has left an app's state whole.

    Args:
        state: of the turn's samples, after `App.compute`.
        of_block: state of one of the turn's data blocks.
        num_samples: of the turn.

    Raises:
        AppError: a state is missing or new, or does not fit where it came from.
    """
    if state.keys() != of_block.keys():
        raise AppError(
            f"compute: left the states {', '.join(map(str, state)) or 'none'}, expected "
            f"{', '.join(of_block)}: those of initial_state"
        )
    for name, column in state.items():
        _check_column(f"compute: state {name!r}", column, num_samples)
        before = of_block[name]
        arrays = [each.values if isinstance(each, Ragged) else each for each in (before, column)]
        if type(before) is not type(column) or arrays[0].shape[1:] != arrays[1].shape[1:]:
            raise AppError(
                f"compute: state {name!r} has another form than before the turn; allowed: other values in "
                "the same arrays"
            )


def checked_initial(table: Table, values: Any, num_rows: int) -> NDArray[Any]:
    """First values of some rows of a table.

    Args:
        table: the table.
        values: what `App.initial` returned.
        num_rows: rows that it was asked for.

    Raises:
        AppError: they have another shape, a type that does not fit the table's, or NaN among them.
    """
    found = np.asarray(values)
    shape = (num_rows, table.num_columns)
    if found.shape != shape:
        raise AppError(f"initial({table.name!r}): got an array of shape {found.shape}, expected {shape}")
    if not np.can_cast(found.dtype, table.dtype, "same_kind"):
        raise AppError(
            f"initial({table.name!r}): got values of type {found.dtype}, allowed: what fits the table's "
            f"{table.dtype}"
        )
    if found.dtype.kind in "fc" and np.isnan(found).any():
        raise AppError(f"initial({table.name!r}): got NaN, allowed: numbers; an update would not change it")
    return found


def checked_terms(method: str, terms: Any) -> dict[str, float]:
    """Terms of an objective, as plain numbers by name.

    Raises:
        AppError: they are no mapping of names to numbers.
    """
    if not isinstance(terms, Mapping):
        raise AppError(f"{method}: got a {type(terms).__name__}, allowed: a mapping of names to numbers")
    numbers = {}
    for name, value in terms.items():
        try:
            numbers[str(name)] = float(value)
        except (TypeError, ValueError):
            raise AppError(f"{method}: got {value!r} for {name!r}, allowed: a number") from None
    return numbers


class calling:  # noqa: N801 - reads as a statement
    """Turn what the app raises in a `with` block into an error for the user; errors of our own pass.

    Raises:
        UserCodeError: the app has raised an exception, which is the `__cause__`.
    """

    __slots__ = ("_app", "_method")

    def __init__(self, app: object, method: str) -> None:
        self._app, self._method = app, method

    def __enter__(self) -> None:
        pass

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        is_users = isinstance(error, Exception | SystemExit | KeyboardInterrupt) and not is_ctrl_c(error)
        if is_users and not isinstance(error, HpcbalError):
            method = f"{type(self._app).__name__}.{self._method}"
            assert error is not None
            raise UserCodeError(f"{method}: {summary(error)}") from error
