"""Find the user's callables by import path `package.module:name`."""

from __future__ import annotations

import contextlib
import importlib
import importlib.machinery
import os
import sys
import sysconfig
import types
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from hpcbal import env
from hpcbal.config.source.meant import did_you_mean
from hpcbal.errors import InputError, UserCodeError
from hpcbal.user_code import summary

OPTIONAL_LIBRARIES = frozenset(
    {"IPython", "cupy", "cv2", "dask", "flax", "h5py", "jax", "jaxlib", "numba", "onnx", "openvino", "optree"}
    | {"orbax", "pandas", "polars", "pyarrow", "pydot", "rich", "sklearn", "tensorboard", "tensorflow_io"}
    | {"tf_keras", "torch", "torch_xla"}
)
"""Modules that Keras, TensorFlow and other libraries look for, and do without if they are not installed."""


def add_import_roots(config_path: str | os.PathLike[str], first: Sequence[str] = ()) -> None:
    """Make modules importable from the configuration's directory and from the current one.

    Every rank calls this before it loads objects. These directories come last, so that a user's json.py does
    not replace Python's for hpcbal and its libraries, which do not find there either what they look for
    (`OPTIONAL_LIBRARIES`); `hidden_modules` names such files. The configuration's directory comes before the
    current one. Keras computes with TensorFlow, whatever a variable or the user's keras.json says.

    Args:
        config_path: the configuration.
        first: directories to look in before these two, such as that of the file which a run was started with.
    """
    roots = list(dict.fromkeys([*first, *_own_roots(config_path)]))
    os.environ.update(env.tensorflow_settings())  # before a user's module imports it
    sys.path[:] = [*(directory for directory in sys.path if directory not in roots), *roots]
    for folder in (*roots, *_own_of_pythonpath()):
        sys.path_importer_cache[folder] = _OwnFolder(folder)


class _OwnFolder(importlib.machinery.FileFinder):
    """A folder of the user, in which no library finds what it looks for: not a folder jax with data."""

    def __init__(self, folder: str) -> None:
        machinery = importlib.machinery
        super().__init__(
            folder,
            (machinery.ExtensionFileLoader, machinery.EXTENSION_SUFFIXES),
            (machinery.SourceFileLoader, machinery.SOURCE_SUFFIXES),
            (machinery.SourcelessFileLoader, machinery.BYTECODE_SUFFIXES),
        )

    def find_spec(
        self, fullname: str, target: types.ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        """Find a module; None if it is not here, or has the name of a library."""
        return None if fullname in OPTIONAL_LIBRARIES else super().find_spec(fullname, target)


def _own_roots(config_path: str | os.PathLike[str]) -> list[str]:
    roots = [str(Path(config_path).resolve().parent)]
    with contextlib.suppress(FileNotFoundError):  # the current directory was removed
        roots.append(os.getcwd())
    return roots


def hidden_modules(config_path: str | os.PathLike[str]) -> list[str]:
    """Return a warning for each module of the user that Python or a library hides.

    Such a module is never imported, because the libraries' own come first. The user's modules are beside the
    configuration, and in folders of PYTHONPATH that come after the libraries.
    """
    before = _library_folders()
    own = [Path(config_path).resolve().parent, *map(Path, _own_of_pythonpath())]
    warnings = []
    for file in dict.fromkeys(
        file for folder in own for file in sorted([*folder.glob("*.py"), *folder.glob("*/__init__.py")])
    ):
        name = file.parent.name if file.name == "__init__.py" else file.stem
        if not name.isidentifier():  # no import can name it
            continue
        if name in sys.builtin_module_names:
            other: str | None = "Python itself"
        else:
            found = importlib.machinery.PathFinder.find_spec(name, before)
            other = None if found is None or found.origin in (None, str(file)) else found.origin
        if other is not None:
            reason = f"hidden by the module of the same name in {other}"
        elif name in OPTIONAL_LIBRARIES and importlib.machinery.PathFinder.find_spec(name) is None:
            reason = "hidden, because libraries would take it for one that they look for"
        else:
            continue
        warnings.append(f"{file}: {reason}; if your code imports it, give the file another name")
    return warnings


def _library_folders() -> list[str]:
    return [sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")]


def _own_of_pythonpath() -> list[str]:
    """Folders of PYTHONPATH that come after the libraries."""
    before = _library_folders()
    last = max((n for n, entry in enumerate(sys.path) if entry in before), default=len(sys.path))
    given = [os.path.abspath(entry) for entry in (env.read("PYTHONPATH") or "").split(os.pathsep) if entry]
    return [entry for entry in sys.path[last:] if entry in given]


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
