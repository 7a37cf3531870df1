"""Open the dataset that a config names by import path and arguments."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any, cast

from hpcbal.data.dataset import Dataset, check_dataset
from hpcbal.errors import DataError, HpcbalError


def open_dataset(path: str, args: Mapping[str, Any]) -> Dataset:
    """Call the dataset's factory or class.

    Args:
        path: "package.module:callable", as in `data.dataset`.
        args: keyword arguments, as in `data.args`.

    Raises:
        DataError: if arguments are wrong, the callable raises, or the result is not a dataset.
        InputError: if nothing exists at the import path.
    """
    from hpcbal.config.imports import load_object

    factory = load_object(path)
    _check_args(factory, path, args)
    try:
        dataset = factory(**args)
    except (HpcbalError, KeyboardInterrupt):
        raise
    except BaseException as error:  # a user's code may raise anything
        raise DataError(f"data.dataset {path}: cannot be opened: {type(error).__name__}: {error}") from error
    check_dataset(dataset, path)
    return cast(Dataset, dataset)


def _check_args(factory: Any, path: str, args: Mapping[str, Any]) -> None:
    try:
        signature = inspect.signature(factory)
    except ValueError:  # some callables written in C have no signature
        return
    try:
        signature.bind(**args)
    except TypeError as error:
        raise DataError(f"data.args: {error}; {path} takes {signature}") from None
