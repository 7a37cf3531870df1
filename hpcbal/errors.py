"""Exit codes, the errors that carry them to the user, and with which code a command ends."""

from __future__ import annotations

import contextlib
import enum
import errno
import os
from collections.abc import Iterator, Mapping

from hpcbal.safe_text import one_line, shortened

MAX_PROBLEM = 1500
"""Characters of one problem of a configuration; one that lists all keys has about 400."""


class ExitCode(enum.IntEnum):
    """The codes that `hpcbal` returns to the shell; every rank returns the same one."""

    DONE = 0
    INTERNAL_ERROR = 1
    WRONG_INPUT = 2
    FAILED_DNNS = 3
    STALLED = 70
    RUN_AGAIN = 75


INTERRUPTED = 128 + 2
"""The code that a shell reports after SIGINT: Ctrl-C before a run catches signals, or in another verb."""


class HpcbalError(Exception):
    """An error whose message is written for the user: what was given, what is allowed, what to do."""

    exit_code: ExitCode = ExitCode.INTERNAL_ERROR


class InputError(HpcbalError):
    """The user's input (config, command line, files, launch) is wrong."""

    exit_code = ExitCode.WRONG_INPUT


@contextlib.contextmanager
def refusing_paths() -> Iterator[None]:
    """Turn what the system says of a path that cannot even be looked at into an `InputError`.

    `Path.exists` and its like raise it for names that are too long, and in folders that one may not search.
    """
    try:
        yield
    except ValueError as error:
        if "embedded null" not in str(error):
            raise
        raise InputError("got a path with a NUL character, allowed: any other; give another path") from error
    except OSError as error:
        if error.errno not in (errno.ENAMETOOLONG, errno.EACCES) or not error.filename:
            raise
        path = one_line(shortened(os.fsdecode(error.filename)))
        raise InputError(f"{path}: {error.strerror}; give another path") from error


MOST_PROBLEMS = 100
"""Problems of one configuration that are shown: nobody reads more of them before mending the first."""


class Problem(str):
    """One problem of a configuration: a printable line, and which place it is about, where that is known.

    Attributes:
        where: `run.yaml:14`, `--set a.b=c`, or `config` for a configuration that is no file; else empty.
        key: dotted path of the key; empty for the whole file.
    """

    where: str
    key: str

    def __new__(cls, text: str, where: str = "", key: str = "") -> Problem:
        made = super().__new__(cls, text)
        made.where, made.key = where, key
        return made

    @property
    def file(self) -> str:
        """The file; empty if it is none, or not known."""
        name, _, line = self.where.rpartition(":")
        return name if line.isdecimal() else ""

    @property
    def line(self) -> int | None:
        """The line of the file, from 1; None if it is not known."""
        line = self.where.rpartition(":")[2]
        return int(line) if self.file else None


class ConfigError(InputError):
    """One or more problems in a configuration file, all reported together.

    Attributes:
        problems: a printable line for each, with its place, at most `MOST_PROBLEMS`.
        has_more: whether there are more.
    """

    def __init__(self, problems: tuple[str, ...] | list[str]) -> None:
        self.problems = tuple(
            Problem(
                shortened(one_line(problem), MAX_PROBLEM),
                getattr(problem, "where", ""),
                getattr(problem, "key", ""),
            )
            for problem in problems[:MOST_PROBLEMS]
        )
        self.has_more = len(problems) > MOST_PROBLEMS
        super().__init__(tuple(problems[: MOST_PROBLEMS + 1]))

    def __str__(self) -> str:
        return "\n".join(self.problems)

    @property
    def key(self) -> str:
        """The key of the first problem."""
        return self.problems[0].key if self.problems else ""

    @property
    def file(self) -> str:
        """The file of the first problem."""
        return self.problems[0].file if self.problems else ""

    @property
    def line(self) -> int | None:
        """The line of the first problem."""
        return self.problems[0].line if self.problems else None


class UserCodeError(InputError):
    """A user's model or dataset raised an exception, which is the `__cause__`."""


class DataError(InputError):
    """A dataset is missing, unreadable or has too many broken samples."""


class SamplerError(InputError, ValueError):
    """A sampler of `hpcbal.samplers` was given, or asked for, something that it cannot do."""


class ClusterError(InputError):
    """The allocation does not have what the config needs."""


class CheckpointError(InputError):
    """A checkpoint file is missing, damaged or does not fit the DNN, or an array has no place in one."""


class OutputError(InputError):
    """The output directory cannot be used: not writable, full, or used by another run."""


class LedgerError(InputError):
    """A line of a ledger is damaged, or written by a version of hpcbal that this one cannot read."""


class RunFailed(HpcbalError):  # noqa: N818 - as people say it
    """A command that Python code has started did not end well; wrong input is a `RunRefused`.

    Attributes:
        code: exit code of the command, see `ExitCode`; 128 and the signal's number if one has ended it.
        directory: output directory of the run.
        output: the last lines that the command has printed.
    """

    def __init__(self, command: str, code: int, directory: str, output: str) -> None:
        self.command, self.code, self.directory, self.output = command, code, directory, output
        known = code in ExitCode.__members__.values()
        self.exit_code = ExitCode(code) if known else ExitCode.INTERNAL_ERROR
        super().__init__(command, code, directory, output)  # pickle passes these to __init__

    def __str__(self) -> str:
        said = f":\n{self.output}" if self.output else ""
        return f"{self.directory}: '{self.command}' ended with code {self.code}{said}"


class RunRefused(RunFailed, InputError):  # noqa: N818
    """A command that Python code has started was refused: its input is wrong.

    `Run` shows arguments in place of options in `output`: `dnns`, not `--dnns`.
    """


class HpcbalWarning(UserWarning):
    """A warning of a verb that Python code has called: something may be unintended."""


class PolicyError(HpcbalError):
    """A decision was requested that has no valid answer."""


CODE_OF_OUTCOME: Mapping[str, ExitCode] = {
    "done": ExitCode.DONE,
    "failed-dnns": ExitCode.FAILED_DNNS,
    "failed": ExitCode.FAILED_DNNS,
    "profiled": ExitCode.DONE,
    "suspended": ExitCode.RUN_AGAIN,
}
"""Codes of starts by their outcome, where no error has ended them."""

LAST_OUTCOMES = ("done", "failed-dnns", "failed")
"""Outcomes after which nothing is left to do, unless what has failed is to be tried again."""


def code_of_end(outcome: str, error: HpcbalError | None = None) -> int:
    """Return the code of a start.

    Args:
        outcome: as in `CODE_OF_OUTCOME`.
        error: what has ended it; it decides if there is one.
    """
    return int(CODE_OF_OUTCOME[outcome] if error is None else error.exit_code)


def code_of_error(error: BaseException) -> int:
    """Return the code of a command that an error has ended; one that is not ours is a fault in hpcbal."""
    return int(error.exit_code if isinstance(error, HpcbalError) else ExitCode.INTERNAL_ERROR)
