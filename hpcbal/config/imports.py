"""Find the user's callables by import path `package.module:name`."""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from hpcbal.config.source.suggest import did_you_mean
from hpcbal.errors import InputError, UserCodeError
from hpcbal.user_code import summary


def add_import_roots(config_path: str | Path, first: Sequence[str] = ()) -> None:
    """Make modules importable from the configuration's directory and from the current one.

    Every rank calls this before it loads objects. As for `python script.py`, these directories come first;
    the configuration's directory comes before the current one.

    Args:
        config_path: the configuration.
        first: directories to look in before these two, such as that of the file which a run was started with.
    """
    for directory in (os.getcwd(), str(Path(config_path).resolve().parent), *reversed(first)):
        if directory in sys.path:
            sys.path.remove(directory)
        sys.path.insert(0, directory)


def load_object(path: str) -> Callable[..., Any]:
    """Import a callable.

    Args:
        path: `package.module:name`; the name may contain dots (`module:Class.method`).

    Raises:
        InputError: if the path has another form, there is no such module or name, or the object is not
            callable.
        UserCodeError: if the module raises on import.
    """
    module_name, colon, attribute = path.partition(":")
    if not (module_name and colon and attribute):
        raise InputError(f"{path}: not an import path, allowed: package.module:callable")
    value: Any = _import(module_name, path)
    for name in attribute.split("."):
        try:
            value = getattr(value, name)
        except AttributeError:
            hint = did_you_mean(name, [n for n in dir(value) if not n.startswith("_")])
            file = getattr(value, "__file__", None)
            at = f" ({file})" if file else ""
            raise InputError(f"{path}: {module_name}{at} has no '{name}'{hint}") from None
        except Exception as error:
            raise UserCodeError(f"{path}: looking up '{name}' failed: {summary(error)}") from error
    if not callable(value):
        raise InputError(f"{path} is of type {type(value).__name__}, allowed: a function or class")
    loaded: Callable[..., Any] = value
    return loaded


def _import(name: str, path: str) -> Any:
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        missing = error.name or ""
        if missing and (name == missing or name.startswith(f"{missing}.")):
            raise InputError(
                f"{path}: no module '{missing}'; put it beside the configuration, into the current "
                "directory, or install it"
            ) from None
        raise UserCodeError(f"{path}: importing {name} failed: {summary(error)}") from error
    except (Exception, SystemExit) as error:
        raise UserCodeError(f"{path}: importing {name} failed: {summary(error)}") from error
