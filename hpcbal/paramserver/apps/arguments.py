"""Check what an app gets: the arguments from the YAML file, and the facts and columns of its dataset."""

from __future__ import annotations

from collections.abc import Collection

import numpy as np

from hpcbal.data.dataset import kind_of
from hpcbal.errors import InputError
from hpcbal.paramserver.api.app import SampleSource
from hpcbal.paramserver.api.columns import Array, Columns, Ragged

_NUM_LOOKED_AT = 1000


def check_at_least(app: str, least: float, **args: float) -> None:
    """Raise if an argument is below a bound.

    Raises:
        InputError: one is.
    """
    for name, value in args.items():
        if isinstance(value, bool) or not isinstance(value, int | float) or not value >= least:
            raise InputError(f"args.{name} of {app}: got {value!r}, allowed: a number >= {least:g}")


def check_above_0(app: str, **args: float) -> None:
    """Raise if an argument is not above 0.

    Raises:
        InputError: one is not.
    """
    for name, value in args.items():
        if isinstance(value, bool) or not isinstance(value, int | float) or not value > 0:
            raise InputError(f"args.{name} of {app}: got {value!r}, allowed: a number > 0")


def check_choice(app: str, name: str, value: str, allowed: tuple[str, ...]) -> None:
    """Raise if an argument is none of the allowed words.

    Raises:
        InputError: it is none.
    """
    if value not in allowed:
        raise InputError(f"args.{name} of {app}: got {value!r}, allowed: {', '.join(allowed)}")


def count_of(app: str, source: SampleSource, fact: str) -> int:
    """A whole number >= 1 that an app needs to know of its data.

    Raises:
        InputError: the dataset does not state it.
    """
    value = source.facts.get(fact)
    if not isinstance(value, int) or value < 1:
        given = ", ".join(f"{name} = {known}" for name, known in source.facts.items()) or "nothing"
        raise InputError(
            f"data: {app} needs a dataset that states {fact} (a whole number >= 1); this one states {given}"
        )
    return value


def ragged_column(app: str, columns: Columns, name: str) -> Ragged:
    """Return a column of lists.

    Raises:
        InputError: the dataset gives anything else.
    """
    column = columns[name]
    if not isinstance(column, Ragged):
        raise InputError(
            f"data: {app} needs a column {name!r} of lists, one for each sample (Ragged.of(lists)); this "
            f"dataset gives {kind_of(column)}"
        )
    return column


def dense_column(app: str, columns: Columns, name: str) -> Array:
    """Return a column that is an array, one row for each sample.

    Raises:
        InputError: the dataset gives lists of unequal length.
    """
    column = columns[name]
    if isinstance(column, Ragged):
        raise InputError(
            f"data: {app} needs a column {name!r} that is an array, one row for each sample; this dataset "
            "gives lists (Ragged)"
        )
    return column


def first_samples(
    app: str, source: SampleSource, *choices: tuple[str, ...], lists: Collection[str] = ()
) -> Columns:
    """Read the first samples of a dataset, to see what they are like.

    Args:
        app: its name.
        source: the dataset.
        choices: groups of columns that the app can train on.
        lists: names of those that are `Ragged`; the others are arrays.

    Returns: the columns of at most 1,000 samples.

    Raises:
        InputError: the dataset has all columns of none of the groups, or one is of the wrong kind.
    """
    columns = source.read(np.arange(min(source.num_samples, _NUM_LOOKED_AT)))
    if not any(set(names) <= set(columns) for names in choices):
        allowed = ", or ".join(" and ".join(names) for names in choices)
        raise InputError(
            f"data: {app} needs a dataset with columns {allowed}; this one has {', '.join(columns)}"
        )
    for name in (name for names in choices for name in names if name in columns):
        (ragged_column if name in lists else dense_column)(app, columns, name)
    return columns
