"""An error in a user's code: one line with their file and the whole message, then the traceback."""

from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType

import pytest

from hpcbal.errors import InputError, UserCodeError
from hpcbal.user_code import MAX_CHARACTERS, report, summary

SOURCE = """\
import json

class Odd(Exception):
    def __str__(self):
        raise RuntimeError("no text")

def plain():
    raise ValueError("cannot use\\n  [[0.1 0.2]\\n   [0.3 0.4]]\\n and more")

def through_a_library():
    return helper()

def helper():
    return json.loads("{")

def odd():
    raise Odd()

def silent():
    raise KeyError

def coloured():
    raise TypeError("\\x1b[1mbold\\x1b[0m\\x07 [m")

def long():
    raise ValueError("begin " + "x" * 5000 + " end")

def wrapped():
    try:
        plain()
    except ValueError as error:
        raise TypeError("outer") from error
"""


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    (tmp_path / "theirs.py").write_text(SOURCE)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "theirs", raising=False)
    monkeypatch.chdir(tmp_path)
    import theirs  # type: ignore[import-not-found]

    loaded: ModuleType = theirs
    return loaded


def raised_by(module: ModuleType, name: str) -> Exception:
    try:
        getattr(module, name)()
    except Exception as error:
        return error
    raise AssertionError("nothing was raised")


@pytest.mark.parametrize(
    ("name", "line"),
    [
        ("plain", "theirs.py:8: ValueError: cannot use [[0.1 0.2] [0.3 0.4]] and more"),
        (
            "through_a_library",
            "theirs.py:14: JSONDecodeError: Expecting property name enclosed in double quotes: "
            "line 1 column 2 (char 1)",
        ),
        ("odd", "theirs.py:17: Odd: (its message cannot be shown: RuntimeError)"),
        ("silent", "theirs.py:20: KeyError"),
        ("coloured", r"theirs.py:23: TypeError: \x1b[1mbold\x1b[0m\x07 [m"),
        ("wrapped", "theirs.py:32: TypeError: outer"),
    ],
)
def test_the_line_holds_the_last_line_of_their_file_and_the_whole_message(
    module: ModuleType, name: str, line: str
) -> None:
    assert summary(raised_by(module, name)) == line


def test_the_middle_of_a_very_long_message_is_left_out(module: ModuleType) -> None:
    line = summary(raised_by(module, "long"))
    assert line.startswith("theirs.py:26: ValueError: begin xxx")
    assert line.endswith("xxx end")
    assert len(line) < MAX_CHARACTERS + 50
    assert "x" * 5000 in report(raised_by(module, "long"))


def test_a_report_holds_the_traceback_below_the_line(module: ModuleType) -> None:
    first, _, rest = report(raised_by(module, "plain")).partition("\n")
    assert first == summary(raised_by(module, "plain"))
    assert rest.startswith("Traceback (most recent call last):\n")
    assert rest.endswith("[0.3 0.4]]\n and more")


def test_our_own_errors_are_their_message_and_a_wrapped_one_adds_the_users_traceback(
    module: ModuleType,
) -> None:
    assert report(InputError("wrong")) == "wrong"
    wrapping = UserCodeError("theirs failed")
    assert report(wrapping).startswith("theirs failed\n")
    wrapping.__cause__ = raised_by(module, "plain")
    first, _, rest = report(wrapping).partition("\n")
    assert first == "theirs failed"
    assert rest.startswith("Traceback")
    assert "UserCodeError" not in rest


QUOTED = """\
Graph execution error:

Detected at node EagerPyFunc defined at (most recent call last):
  File "/site/run.py", line 10, in <module>

ValueError: the layers: do not
fit here
Traceback (most recent call last):

  File "/venv/lib/python3.11/site-packages/tensorflow/python/ops/script_ops.py", line 267, in __call__
    return func(device, token, args)
           ^^^^^^^^^^^^^^^^^^^^^^^^^

  File "/home/me/mymodels.py", line 4, in layer
    return inner(x)
           ^^^^^^^^

  File "/home/me/mymodels.py", line 2, in inner
    raise ValueError("the layers: do not\\nfit here")
%s
ValueError: the layers: do not
fit here


\t [[{{node EagerPyFunc}}]] [Op:__inference_step_6]"""


@pytest.mark.parametrize("library_below", [False, True])
def test_of_an_error_that_tensorflow_quotes_the_users_own_is_shown(library_below: bool) -> None:
    frame = '\n  File "/venv/lib/python3.11/site-packages/numpy/core.py", line 9, in dot\n    raise\n'
    error = RuntimeError(QUOTED % (frame if library_below else ""))
    assert summary(error) == "/home/me/mymodels.py:2: ValueError: the layers: do not fit here"


def test_a_quoted_error_of_libraries_alone_is_shown_whole() -> None:
    error = RuntimeError(QUOTED.replace("/home/me", "/venv/lib/python3.11/site-packages/keras") % "")
    assert "Graph execution error: Detected at node" in summary(error)


@pytest.mark.parametrize("own", ["work", "my-packages"])
def test_the_line_of_the_user_is_named_whatever_libraries_lie_between(
    own: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A library that hpcbal does not know, as pandas, in any folder of packages."""
    packages = tmp_path / "lib" / "site-packages"
    tmp_path = tmp_path / own
    for folder in (packages, tmp_path):
        folder.mkdir(parents=True)
    monkeypatch.delitem(sys.modules, "table_of_theirs", raising=False)
    (packages / "unknown_frames.py").write_text("def look(key):\n    return {}[key]\n")
    (tmp_path / "table_of_theirs.py").write_text(
        "import unknown_frames\n\ndef read():\n    unknown_frames.look(50)\n"
    )
    monkeypatch.syspath_prepend(str(packages))
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.chdir(tmp_path)
    import table_of_theirs  # type: ignore[import-not-found]

    with pytest.raises(KeyError) as caught:
        table_of_theirs.read()
    assert summary(caught.value) == "table_of_theirs.py:4: KeyError: 50"
