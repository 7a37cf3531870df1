"""Find the user's callables by import path `package.module:name`."""

from __future__ import annotations

import contextlib
import importlib
import importlib.machinery
import os
import sys
import sysconfig
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from hpcbal import env
from hpcbal.config.source.nodes import did_you_mean
from hpcbal.errors import InputError, UserCodeError
from hpcbal.user_code import summary


def add_import_roots(config_path: str | Path, first: Sequence[str] = ()) -> None:
    """Make modules importable from the configuration's directory and from the current one.

    Every rank calls this before it loads objects. These directories come last, so that a user's json.py does
    not replace Python's for hpcbal and its libraries (`hidden_modules` names such files); the configuration's
    directory comes before the current one. Keras computes with TensorFlow, whatever a variable or the user's
    keras.json says.

    Args:
        config_path: the configuration.
        first: directories to look in before these two, such as that of the file which a run was started with.
    """
    roots = list(dict.fromkeys([*first, *_own_roots(config_path)]))
    os.environ.update(env.tensorflow_settings())  # before a user's module imports it
    sys.path[:] = [*(directory for directory in sys.path if directory not in roots), *roots]


def _own_roots(config_path: str | Path) -> list[str]:
    roots = [str(Path(config_path).resolve().parent)]
    with contextlib.suppress(FileNotFoundError):  # the current directory was removed
        roots.append(os.getcwd())
    return roots


def hidden_modules(config_path: str | Path) -> list[str]:
    """Return a warning for each module of the user that Python or a library hides.

    Such a module is never imported, because the libraries' own come first. The user's modules are beside the
    configuration, and in folders of PYTHONPATH that come after the libraries.
    """
    before = [sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")]
    last = max((n for n, entry in enumerate(sys.path) if entry in before), default=len(sys.path))
    given = [os.path.abspath(entry) for entry in (env.read("PYTHONPATH") or "").split(os.pathsep) if entry]
    own = [Path(config_path).resolve().parent, *(Path(entry) for entry in sys.path[last:] if entry in given)]
    warnings = []
    for file in dict.fromkeys(
        file for folder in own for file in sorted([*folder.glob("*.py"), *folder.glob("*/__init__.py")])
    ):
        name = file.parent.name if file.name == "__init__.py" else file.stem
        if name in sys.builtin_module_names:
            other: str | None = "Python itself"
        else:
            found = importlib.machinery.PathFinder.find_spec(name, before)
            other = None if found is None or found.origin in (None, str(file)) else found.origin
        if other is not None:
            warnings.append(
                f"{file}: hidden by the module of the same name in {other}; if your code imports it, "
                "give the file another name"
            )
    return warnings


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
