"""Options that several verbs share."""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeAlias

from hpcbal.errors import OutputError
from hpcbal.processes import say
from hpcbal.safe_text import printable

Subparsers: TypeAlias = "argparse._SubParsersAction[argparse.ArgumentParser]"


def add_config(parser: argparse.ArgumentParser, *, may_lack: bool = False) -> None:
    """The configuration file and `--set`.

    Args:
        may_lack: whether other options may name what to do instead of a file.
    """
    parser.add_argument(
        "config",
        type=Path,
        metavar="CONFIG",
        nargs="?" if may_lack else None,
        help="YAML file of the run",
    )
    parser.add_argument(
        "--set",
        dest="overrides",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="change a key, e.g. --set schedule.alpha=0.9 or --set dnns.NAME.batch_size=64; may be repeated",
    )


def add_json(parser: argparse.ArgumentParser) -> None:
    """`--json`."""
    parser.add_argument("--json", action="store_true", help="print JSON instead of text")


def add_slots_per_node(
    parser: argparse.ArgumentParser, hints: Sequence[str] = ("--gpus", "--gpus-per-node")
) -> None:
    """`--slots-per-node`, and hints for those who write `--gpus` as in other tools."""
    parser.add_argument(
        "--slots-per-node",
        type=positive,
        metavar="N",
        help="trainer slots per node (default: slots.per_node)",
    )
    for option in hints:
        parser.add_argument(
            option, nargs="?", action=_CalledSlots, default=argparse.SUPPRESS, help=argparse.SUPPRESS
        )


class _CalledSlots(argparse.Action):
    """Refuse the option and name the one that was meant."""

    def __call__(
        self,
        parser: argparse.ArgumentParser,
        namespace: argparse.Namespace,
        values: object,
        option_string: str | None = None,
    ) -> None:
        meant = self.option_strings[0].replace("gpus", "slots")
        raise argparse.ArgumentError(self, f"unknown option (did you mean '{meant}'?)")


def add_output(parser: argparse.ArgumentParser) -> None:
    """`--output`."""
    parser.add_argument(
        "--output",
        "-o",
        type=directory,
        metavar="DIR",
        help="output directory (default: $HPCBAL_OUTPUT, else output.dir of the configuration)",
    )


def add_launch(parser: argparse.ArgumentParser) -> None:
    """Options of the verbs that start ranks."""
    add_output(parser)
    parser.add_argument(
        "--log-level",
        type=str.upper,
        choices=("DEBUG", "INFO", "WARNING", "ERROR"),
        help="level of the ranks' log files (default: $HPCBAL_LOG_LEVEL, else INFO)",
    )


def positive(text: str) -> int:
    """Argument type: a whole number, 1 or more."""
    number = int(text) if text.isdecimal() else 0
    if number < 1:
        raise argparse.ArgumentTypeError(f"got {text!r}, allowed: a whole number, 1 or more")
    return number


def numbers(text: str) -> list[int]:
    """Argument type: `20,40` as whole numbers, 1 or more, without repetitions."""
    return list(dict.fromkeys(positive(part.strip()) for part in text.split(",")))


def nodes(text: str) -> int | str:
    """Argument type: a whole number, 1 or more, or `auto`."""
    return text if text == "auto" else positive(text)


def share(text: str) -> float:
    """Argument type: a number above 0, at most 1."""
    try:
        found = float(text)
    except ValueError:
        found = 0.0
    if not 0.0 < found <= 1.0:
        raise argparse.ArgumentTypeError(f"got {text!r}, allowed: a number above 0, at most 1")
    return found


def directory(text: str) -> Path:
    """Argument type: the name of a directory; no shell has replaced the `~` of `--output=~/runs`."""
    if not text:
        raise argparse.ArgumentTypeError(
            "got an empty name, allowed: a directory; perhaps a variable is not set"
        )
    return Path(text).expanduser() if text.startswith("~/") else Path(text)


def print_warning(text: str) -> None:
    """Warn of something that may be unintended; the verb continues."""
    say(f"warning: {text}")


@contextmanager
def writing_stdout() -> Iterator[None]:
    """Write to stdout.

    Raises:
        OutputError: it cannot be written, for instance because it is a file on a full disk.
        BrokenPipeError: its reader has enough.
    """
    try:
        yield
        sys.stdout.flush()
    except BrokenPipeError:
        raise
    except OSError as error:
        drop_stdout()
        raise OutputError(f"cannot write to standard output: {error.strerror or error}") from error


def drop_stdout() -> None:
    """Write what comes to nowhere. Otherwise Python complains again when it flushes at exit."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def print_text(text: str) -> None:
    """Write text to stdout, printable, and the end of a line; see `writing_stdout`."""
    with writing_stdout():
        print(printable(text))


class Answer(dict[str, Any]):
    """The answer of a verb: a dict of what `--json` prints; `str` makes the text for people.

    Args:
        values: plain values.
        lines: makes the lines of the text.
        remarks: sentences beside the text.
    """

    def __init__(
        self, values: Mapping[str, Any], lines: Callable[[], list[str]], remarks: Sequence[str] = ()
    ) -> None:
        super().__init__(values)
        self._lines = lines
        self.remarks = tuple(remarks)

    def __str__(self) -> str:
        return "\n".join(self._lines())


def print_answer(answer: Answer, *, as_json: bool) -> int:
    """Print an answer to stdout, and beside its text the remarks to stderr; returns the exit code."""
    if as_json:
        print_json(answer)
        return 0
    print_text(str(answer))
    for remark in answer.remarks:
        say(f"hpcbal: {remark}")
    return 0


def print_json(value: Any, *, indent: int | None = 2) -> None:
    """Write a value to stdout as JSON and a newline; see `writing_stdout`."""
    with writing_stdout():
        json.dump(value, sys.stdout, indent=indent)
        sys.stdout.write("\n")
