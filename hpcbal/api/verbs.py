"""Calls as command lines: options, configurations, and the process that a verb leaves as it was."""

from __future__ import annotations

import argparse
import contextlib
import os
import re
import sys
import threading
import warnings
from collections.abc import Iterator, Mapping
from typing import Any, TypeAlias

from hpcbal.cli.main import parsed
from hpcbal.errors import CheckpointError, DataError, HpcbalWarning, InputError, OutputError, refusing_paths

ConfigLike: TypeAlias = str | os.PathLike[str] | Mapping[str, Any]
"""The path of a YAML file, or its keys as values."""

_changing = threading.RLock()


def options(**given: Any) -> list[str]:
    """Return the words for options: `slots_per_node=4` is `--slots-per-node=4`.

    None and False leave an option out, True has no value, a list is separated by commas, and a mapping
    repeats the option as `--name=key=value`.
    """
    words = []
    for name, value in given.items():
        option = f"--{name.replace('_', '-')}"
        if value is True:
            words.append(option)
        elif isinstance(value, Mapping):
            words += [f"{option}={key}={each}" for key, each in value.items()]
        elif isinstance(value, list | tuple):
            words += [f"{option}={','.join(map(str, value))}"] if value else []
        elif value is not None and value is not False:
            words.append(f"{option}={os.fspath(value) if isinstance(value, os.PathLike) else value}")
    return words


def changes(given: Mapping[str, Any] | None) -> list[str]:
    """Return the words for changes of keys, by dotted key.

    Raises:
        ConfigError: if YAML cannot express a value.
        InputError: if it is no mapping.
    """
    from hpcbal.config.source.given import overrides_of

    if given is not None and not isinstance(given, Mapping):
        raise InputError(
            f"set: got a {type(given).__name__}, allowed: a dict of values by dotted key, such as "
            '{"defaults.batch_size": 64}'
        )
    return [f"--set={text}" for text in overrides_of(given or {})]


def path_word(path: str | os.PathLike[str]) -> str:
    """Return a path as a word that is no option."""
    text = os.fspath(path)
    return f"./{text}" if text.startswith("-") else text


def arguments_for(verb: str, config: ConfigLike, words: list[str]) -> argparse.Namespace:
    """Return the arguments of a verb that takes a configuration.

    Raises:
        ConfigError: if YAML cannot express a value of the configuration.
        InputError: if an option has a wrong value.
    """
    if isinstance(config, Mapping):
        from hpcbal.config.source.given import GivenConfig

        args = parsed([verb, "-", *words])
        args.config = GivenConfig(config)
        return args
    if not isinstance(config, str | os.PathLike):
        raise InputError(
            f"config: got a {type(config).__name__}, allowed: the path of a YAML file, or a dict of its keys"
        )
    return parsed([verb, path_word(config), *words])


def warn(text: str) -> None:
    """Warn of something that may be unintended, as Python code is warned."""
    warnings.warn(of_python(text), HpcbalWarning, stacklevel=3)


@contextlib.contextmanager
def naming_arguments() -> Iterator[None]:
    """Name arguments of Python in errors, where the command line has options: `dnns`, not `--dnns`.

    Errors with fields stay as they are.
    """
    try:
        with refusing_paths():
            yield
    except InputError as error:
        text = of_python(str(error))
        if text == str(error) or type(error) not in (InputError, DataError, OutputError, CheckpointError):
            raise
        raise type(error)(text).with_traceback(error.__traceback__) from error.__cause__


_OPTION = re.compile(r"'hpcbal [^']*'|(?:\bargument )?(?<![\w-])--([a-z][a-z-]*)(?:/-[a-z]\b)?")


def of_python(text: str) -> str:
    """Return the text with names of arguments in place of options; command lines in it stay as they are."""
    return _OPTION.sub(lambda found: found[1].replace("-", "_") if found[1] else found[0], text)


@contextlib.contextmanager
def unchanged_process() -> Iterator[None]:
    """Undo what a verb changes for the sake of code of users: `sys.path` and environment variables.

    One thread at a time: another one would keep what this one has changed.
    """
    with _changing:
        path, finders, environ = list(sys.path), dict(sys.path_importer_cache), dict(os.environ)
        try:
            yield
        finally:
            sys.path[:] = path
            sys.path_importer_cache.clear()
            sys.path_importer_cache.update(finders)
            for name in os.environ.keys() - environ.keys():
                del os.environ[name]
            os.environ.update({name: text for name, text in environ.items() if os.environ.get(name) != text})
