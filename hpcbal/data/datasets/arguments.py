"""Arguments of the datasets that come with hpcbal: they come from YAML, where nothing has a type."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from hpcbal.errors import DataError


def path_of(dataset: str, key: str, given: object) -> Path:
    """Return the path that an argument names; `~` at its start is the home directory.

    Args:
        dataset: its name, for the message.
        key: name of the argument, likewise.

    Raises:
        DataError: if it is no text.
    """
    if isinstance(given, str | os.PathLike) and given != "":
        return Path(given).expanduser()
    raise _wrong(dataset, key, given, "a path")


def check_names(dataset: str, **given: object) -> None:
    """Check arguments that are names in the data, such as the one of a column.

    Args:
        dataset: its name, for the message.
        given: value of each argument; None: it is not given.

    Raises:
        DataError: if one of them is no text.
    """
    for key, value in given.items():
        if value is not None and not (isinstance(value, str) and value):
            raise _wrong(dataset, key, value, "a name; quote it if YAML reads it as something else")


def check_classes(dataset: str, num_classes: object, class_names: object) -> None:
    """Check the classes that arguments give.

    Args:
        dataset: its name, for the message.
        num_classes, class_names: the arguments; None: they are not given.

    Raises:
        DataError: if `num_classes` is no positive whole number, or `class_names` no list of texts.
    """
    is_number = (
        isinstance(num_classes, int | np.integer) and not isinstance(num_classes, bool) and num_classes > 0
    )
    if num_classes is not None and not is_number:
        raise _wrong(dataset, "num_classes", num_classes, "a whole number, 1 or more")
    if class_names is not None and not _are_texts(class_names):
        raise _wrong(dataset, "class_names", class_names, "a list of texts, such as [cat, dog]")


def image_endings(extensions: Sequence[str], dataset: str) -> tuple[str, ...]:
    """File extensions in lower case, each with its dot.

    Args:
        dataset: whose argument they are, for the message.

    Raises:
        DataError: if they are not a list of texts.
    """
    if not extensions or not _are_texts(extensions):
        raise _wrong(dataset, "extensions", extensions, "a list such as [png, jpg]")
    return tuple("." + extension.lower().lstrip(".") for extension in extensions)


def _are_texts(given: object) -> bool:
    is_list = isinstance(given, Sequence) and not isinstance(given, str | bytes)
    return is_list and all(isinstance(each, str) for each in given)  # type: ignore[attr-defined]


def _wrong(dataset: str, key: str, given: object, allowed: str) -> DataError:
    return DataError(f"{dataset}: data.args.{key}: got {given!r}, allowed: {allowed}")
