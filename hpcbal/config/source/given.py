"""A configuration that is given as values instead of a file, as Python code does."""

from __future__ import annotations

import functools
import json
import os
import sys
import types
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from hpcbal.config.source.nodes import YamlNode, join_key, show
from hpcbal.config.source.yaml_source import Dumper, parse_yaml
from hpcbal.errors import ConfigError
from hpcbal.kinds import DEFAULT_KIND

WHERE = "config"
"""The place of a problem in such a configuration, where files have name and line."""

_MAIN = "__main__"


class GivenConfig(os.PathLike[str]):
    """Values that stand for a YAML file of the same content, in the current directory.

    Functions and classes become their import paths, paths and NumPy's numbers become text and numbers.

    Args:
        values: the keys of a configuration.

    Attributes:
        text: the same as YAML.

    Raises:
        ConfigError: if YAML cannot express a value; all of them are named.
    """

    def __init__(self, values: Mapping[str, Any]) -> None:
        self._plain: dict[Any, Any] = plain_of(values, "", WHERE)
        self.text = _dumped(self._plain)

    def text_with(self, name: str) -> str:
        """Return the same as YAML; a configuration without a name gets this one, not that of its file."""
        return _dumped({"name": name, **self._plain})

    def __fspath__(self) -> str:
        return os.path.join(os.getcwd(), f"{DEFAULT_KIND}.yaml")

    def __str__(self) -> str:
        return WHERE

    def node(self) -> YamlNode:
        """Return the values as nodes, like those of a file."""
        return parse_yaml(self.text, WHERE, fixed_where=WHERE)


def _dumped(plain: Mapping[Any, Any]) -> str:
    text: str = yaml.dump(dict(plain), Dumper=Dumper, sort_keys=False, allow_unicode=True)
    return text


def overrides_of(changes: Mapping[str, Any]) -> list[str]:
    """Return changes by dotted key as texts for `--set`.

    Raises:
        ConfigError: as for `GivenConfig`.
    """
    return [f"{key}={_in_line(plain_of(value, str(key), f'--set {key}'))}" for key, value in changes.items()]


def _in_line(plain: Any) -> str:
    """YAML in one line."""
    try:
        return json.dumps(plain, ensure_ascii=False, allow_nan=False)
    except ValueError:  # JSON has no infinity
        dumped = yaml.dump([plain], Dumper=Dumper, default_flow_style=True, width=sys.maxsize)
        return dumped.strip()[1:-1]


def plain_of(value: Any, key: str, where: str) -> Any:
    """Return a value as text, numbers, true, false, null, lists and mappings.

    Args:
        key, where: its dotted key and its place, for messages.

    Raises:
        ConfigError: as for `GivenConfig`.
    """
    problems: list[str] = []
    plain = _plain(value, key, where, problems)
    if problems:
        raise ConfigError(problems)
    return plain


def _plain(value: Any, key: str, where: str, problems: list[str]) -> Any:
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, int):
        return int(value)
    if isinstance(value, float):
        return float(value)
    if isinstance(value, str):
        return _without_main(str.__str__(value))  # of a member of an Enum its value, too
    if isinstance(value, Mapping):
        return {
            _plain_name(name, key, where, problems): _plain(each, join_key(key, name), where, problems)
            for name, each in value.items()
        }
    if isinstance(value, list | tuple):
        return [_plain(each, join_key(key, index), where, problems) for index, each in enumerate(value)]
    if isinstance(value, os.PathLike):
        return os.fspath(value)
    if hasattr(value, "tolist") and not isinstance(value, type):  # NumPy's values, without importing NumPy
        plain = value.tolist()
        if type(plain) is not type(value):  # a long double is its own
            return _plain(plain, key, where, problems)
    found = _import_path(value) if callable(value) else None
    if found is not None:
        return found
    if callable(value) and not hasattr(value, "__qualname__") and not isinstance(value, functools.partial):
        kind = type(value).__name__
        message = (
            f"got an object, a {kind}, allowed: a function that makes it, or the import path of one, "
            "module:callable; other processes call that themselves"
        )
    elif callable(value):
        name = getattr(value, "__qualname__", type(value).__name__)
        message = (
            f"got {name}, which other processes cannot import under its name: it is a lambda, inside of a "
            "function, made or wrapped by another one, a method of an object, or typed into a notebook or at "
            "a prompt; define it at the top of a module or of the script, or give an import path, "
            "module:callable"
        )
    else:
        message = f"got a {type(value).__name__}, allowed: text, numbers, true, false, null, lists, mappings"
    problems.append(YamlNode(None, where, key).problem(message))
    return show(None)


def _plain_name(name: Any, key: str, where: str, problems: list[str]) -> Any:
    """The name of a key; a list or a mapping can be none."""
    plain = _plain(name, key, where, problems)
    if isinstance(plain, list | dict):
        message = f"got a {type(name).__name__} as a key, allowed: text, numbers, true, false, null"
        problems.append(YamlNode(None, where, key).problem(message))
        return show(None)
    return plain


def _import_path(value: Any) -> str | None:
    """The import path under which ranks find a function or a class; None if there is none."""
    module, name = getattr(value, "__module__", None), getattr(value, "__qualname__", "")
    if not module or not name or "<" in name or _is_another(value, module, name):
        return None
    if module == _MAIN:
        module = _name_of_main()
    return f"{module}:{name}" if module else None


def _is_another(value: Any, module: str, name: str) -> bool:
    """Whether something else has its name: what `functools.wraps` has wrapped, or a method without object.

    One that is only older is none: notebooks load modules again.
    """
    if isinstance(value, types.MethodType) and not isinstance(value.__self__, type):
        return True
    found: Any = sys.modules.get(module)
    for part in name.split("."):
        found = getattr(found, part, None)
    return hasattr(value, "__wrapped__") and found is not value and not hasattr(found, "__wrapped__")


def _without_main(text: str) -> str:
    """`__main__:net` as `train:net` in a script train.py; other text as it is."""
    module, colon, name = text.partition(":")
    main = _name_of_main() if module == _MAIN and colon else None
    return text if main is None else f"{main}:{name}"


def _name_of_main() -> str | None:
    """The name under which others import the script that runs; None if it is no file."""
    main, script = sys.modules[_MAIN], script_file()
    if main.__spec__ is not None:  # python -m package.module
        return main.__spec__.name
    return None if script is None else script.stem


def script_file() -> Path | None:
    """Return the file of the script that runs; None if it is a module, a notebook or a prompt."""
    main = sys.modules[_MAIN]
    file = getattr(main, "__file__", None)
    if file is None or main.__spec__ is not None or not Path(file).is_file():  # `<stdin>` is none
        return None
    return Path(file).resolve()
