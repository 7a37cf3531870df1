"""Check what an app gets: the arguments from the YAML file, and the facts and columns of its dataset."""

from __future__ import annotations

import numpy as np

from hpcbal.errors import InputError
from hpcbal.paramserver.contract import Columns, SampleSource

_NUM_LOOKED_AT = 1000


def check_at_least(app: str, least: float, **args: float) -> None:
    """Raise if an argument is below a bound.

    Raises:
        InputError: one is.
    """
    for name, value in args.items():
        if isinstance(value, bool) or not isinstance(value, int | float) or not value >= least:
            raise InputError(f"args.{name} of {app}: got {value!r}, allowed: a number >= {least:g}")


def check_above(app: str, bound: float, **args: float) -> None:
    """Raise if an argument is not above a bound.

    Raises:
        InputError: one is not.
    """
    for name, value in args.items():
        if isinstance(value, bool) or not isinstance(value, int | float) or not value > bound:
            raise InputError(f"args.{name} of {app}: got {value!r}, allowed: a number > {bound:g}")


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


def first_samples(app: str, source: SampleSource, *choices: tuple[str, ...]) -> Columns:
    """Read the first samples of a dataset, to see what they are like.

    Args:
        app: its name.
        source: the dataset.
        choices: groups of columns that the app can train on.

    Returns: the columns of at most 1,000 samples.

    Raises:
        InputError: the dataset has all columns of none of the groups.
    """
    columns = source.read(np.arange(min(source.num_samples, _NUM_LOOKED_AT)))
    if not any(set(names) <= set(columns) for names in choices):
        allowed = ", or ".join(" and ".join(names) for names in choices)
        raise InputError(
            f"data: {app} needs a dataset with columns {allowed}; this one has {', '.join(columns)}"
        )
    return columns
