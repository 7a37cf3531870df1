"""An error that came from a user's code, for people: the last line of their file, and the whole message."""

from __future__ import annotations

import os
import re
import signal
import traceback
from collections.abc import Iterator

from hpcbal.errors import HpcbalError, UserCodeError
from hpcbal.safe_text import one_line

MAX_CHARACTERS = 1500
"""Longest message in one line; the middle of a longer one is left out. The traceback has all of it."""

_TRACEBACK = re.compile(
    r"Traceback \(most recent call last\):\n(?P<frames>(?:[ \t].*\n|\n)*)(?P<error>[A-Za-z_].*(?:\n.+)*)"
)
_FRAME = re.compile(r'^  File "(?P<file>[^"<]+)", line (?P<line>\d+), in ', re.MULTILINE)
_FOLDERS_OF_LIBRARIES = (os.path.dirname(os.__file__) + os.sep, os.path.dirname(__file__) + os.sep)


def is_ctrl_c(error: BaseException) -> bool:
    """Whether somebody has pressed Ctrl-C: where signals are caught, as on ranks, code has raised it."""
    is_default = signal.getsignal(signal.SIGINT) is signal.default_int_handler
    return is_default and isinstance(error, KeyboardInterrupt)


def summary(error: BaseException) -> str:
    """One line of printable text: `mymodels.py:41: ValueError: the whole message`.

    The place is the last line of the user's own files in the traceback, not the line of a library that they
    call; it is left out if no such line took part. TensorFlow raises an error of its own for one that user
    code raises inside a traced step (`tf.py_function`), and puts the traceback of that into its message.
    """
    cause = error.__cause__
    if cause is not None and not isinstance(cause, Exception):  # such as SystemExit, wrapped on its way
        return summary(cause)
    if (quoted := _quoted(error)) is not None:
        return quoted
    place = _place(error)
    message = _message(error)
    text = f"{type(error).__name__}: {message}" if message else type(error).__name__
    return f"{place}: {text}" if place else text


def report(error: BaseException) -> str:
    """For logs: one line as in `summary`, and below it the traceback; of our own errors the message alone."""
    if isinstance(error, HpcbalError) and not isinstance(error, UserCodeError):
        return str(error)
    is_wrapped = isinstance(error, UserCodeError) and error.__cause__ is not None
    raised = error.__cause__ if is_wrapped and error.__cause__ is not None else error
    line = str(error) if isinstance(error, UserCodeError) else summary(error)
    return f"{line}\n{''.join(traceback.format_exception(raised)).strip()}"


def _quoted(error: BaseException) -> str | None:
    """The summary of an error whose traceback the message of this one quotes; None if it quotes none."""
    found = _TRACEBACK.search(_text(error))
    if found is None:
        return None
    files = [(match["file"], match["line"]) for match in _FRAME.finditer(found["frames"])]
    own = [f"{_short(file)}:{line}" for file, line in files if not _is_of_library(file)]
    return f"{own[-1]}: {_shortened(found['error'])}" if own else None


def _is_of_library(file: str) -> bool:
    is_installed = "/site-packages/" in file or "/dist-packages/" in file  # not a user's own `r-packages`
    return is_installed or "__autograph_generated_file" in file or file.startswith(_FOLDERS_OF_LIBRARIES)


def _text(error: BaseException) -> str:
    try:
        return str(error)
    except Exception as failure:  # a user's exception class may be wrong too
        return f"(its message cannot be shown: {type(failure).__name__})"


def _message(error: BaseException) -> str:
    return _shortened(_text(error))


def _shortened(text: str) -> str:
    line = one_line(" ".join(text.split()))
    if len(line) <= MAX_CHARACTERS:
        return line
    half = MAX_CHARACTERS // 2
    return f"{line[:half]} [...] {line[-half:]}"


def _place(error: BaseException) -> str:
    cause: BaseException | None = error
    while cause is not None:
        places = list(_places(cause))
        if places:
            return places[-1]
        cause = cause.__cause__
    return ""


def _places(error: BaseException) -> Iterator[str]:
    """The lines of the user's files in the traceback, outermost first."""
    step = error.__traceback__
    while step is not None:
        file = step.tb_frame.f_code.co_filename
        if not file.startswith("<") and not _is_of_library(file):
            yield f"{_short(file)}:{step.tb_lineno}"
        step = step.tb_next


def _short(file: str) -> str:
    """The path from the current directory, if the file is below it."""
    try:
        here = os.getcwd()
    except OSError:  # the directory was removed
        return file
    return os.path.relpath(file, here) if file.startswith(here + os.sep) else file
