"""Open the dataset that a config names by import path and arguments."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any, cast

from hpcbal.data.dataset import Dataset, check_dataset
from hpcbal.errors import DataError, HpcbalError, UserCodeError
from hpcbal.processes import leave_if_forked
from hpcbal.user_code import summary


def open_dataset(path: str, args: Mapping[str, Any], key: str = "data.dataset") -> Dataset:
    """Call the dataset's factory or class.

    Args:
        path: "package.module:callable", as in `data.dataset`.
        args: keyword arguments, as in `data.args`.
        key: what names the dataset, for messages.

    Raises:
        DataError: if arguments are wrong, or the result is not a dataset.
        InputError: if nothing exists at the import path.
        UserCodeError: if the module or the callable raises.
    """
    from hpcbal.config.imports import load_object

    factory = load_object(path)
    _check_args(factory, path, args, key)
    try:
        dataset = factory(**args)
        check_dataset(dataset, path, key)
    except (HpcbalError, KeyboardInterrupt):
        raise
    except BaseException as error:  # a user's code may raise anything
        raise UserCodeError(f"{key} {path}: cannot be opened: {summary(error)}") from error
    finally:
        leave_if_forked("the dataset")
    return cast(Dataset, dataset)


def _check_args(factory: Any, path: str, args: Mapping[str, Any], key: str) -> None:
    from hpcbal.config.contract import DATASET, misfits

    try:
        signature = inspect.signature(factory)
    except ValueError:  # some callables written in C have no signature
        return
    found = misfits(path, signature, args, DATASET)
    if found:
        raise DataError(f"{key.removesuffix('.dataset')}.args: {'; '.join(misfit.text for misfit in found)}")
