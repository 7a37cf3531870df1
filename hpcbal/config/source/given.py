"""A configuration that is given as values instead of a file, as Python code does."""

from __future__ import annotations

import json
import os
import sys
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
        plain = _plain_or_error(values, "", WHERE)
        self.text: str = yaml.dump(plain, Dumper=Dumper, sort_keys=False, allow_unicode=True)

    def __fspath__(self) -> str:
        return os.path.join(os.getcwd(), f"{DEFAULT_KIND}.yaml")

    def __str__(self) -> str:
        return WHERE

    def node(self) -> YamlNode:
        """Return the values as nodes, like those of a file."""
        return parse_yaml(self.text, WHERE, fixed_where=WHERE)


def overrides_of(changes: Mapping[str, Any]) -> list[str]:
    """Return changes by dotted key as texts for `--set`.

    Raises:
        ConfigError: as for `GivenConfig`.
    """
    texts = []
    for key, value in changes.items():
        plain = _plain_or_error(value, str(key), f"--set {key}")
        texts.append(f"{key}={json.dumps(plain, ensure_ascii=False)}")  # which is YAML, too
    return texts


def _plain_or_error(value: Any, key: str, where: str) -> Any:
    problems: list[str] = []
    plain = _plain(value, key, where, problems)
    if problems:
        raise ConfigError(problems)
    return plain


def _plain(value: Any, key: str, where: str, problems: list[str]) -> Any:
    if value is None or isinstance(value, bool):
        return value
    for kind in (int, float, str):
        if isinstance(value, kind):
            return _without_main(str(value)) if kind is str else kind(value)
    if isinstance(value, Mapping):
        return {
            _plain(name, key, where, problems): _plain(each, join_key(key, name), where, problems)
            for name, each in value.items()
        }
    if isinstance(value, list | tuple):
        return [_plain(each, join_key(key, index), where, problems) for index, each in enumerate(value)]
    if isinstance(value, os.PathLike):
        return os.fspath(value)
    if hasattr(value, "tolist"):  # numpy scalars and arrays, without importing numpy
        return value.tolist()
    found = _import_path(value) if callable(value) else None
    if found is not None:
        return found
    if callable(value):
        name = getattr(value, "__qualname__", type(value).__name__)
        message = (
            f"got {name}, which other processes cannot import: it is a lambda, inside of a function, or "
            "typed into a notebook or at a prompt; define it at the top of a module or of the script, or "
            "give an import path, module:callable"
        )
    else:
        message = f"got a {type(value).__name__}, allowed: text, numbers, true, false, null, lists, mappings"
    problems.append(YamlNode(None, where, key).problem(message))
    return show(None)


def _import_path(value: Any) -> str | None:
    """The import path under which ranks find a function or a class; None if there is none."""
    module, name = getattr(value, "__module__", None), getattr(value, "__qualname__", "")
    if module == _MAIN:
        module = _name_of_main()
    return f"{module}:{name}" if module and name and "<" not in name else None


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
