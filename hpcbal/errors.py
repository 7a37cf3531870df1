"""Exit codes, and the errors that carry them to the user."""

from __future__ import annotations

import enum

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


MOST_PROBLEMS = 100
"""Problems of one configuration that are shown: nobody reads more of them before mending the first."""


class ConfigError(InputError):
    """One or more problems in a configuration file, all reported together.

    Attributes:
        problems: a printable line for each, at most `MOST_PROBLEMS`.
        has_more: whether there are more.
    """

    def __init__(self, problems: tuple[str, ...] | list[str]) -> None:
        self.problems = tuple(
            shortened(one_line(problem), MAX_PROBLEM) for problem in problems[:MOST_PROBLEMS]
        )
        self.has_more = len(problems) > MOST_PROBLEMS
        super().__init__(tuple(problems[: MOST_PROBLEMS + 1]))

    def __str__(self) -> str:
        return "\n".join(self.problems)


class UserCodeError(InputError):
    """A user's model or dataset raised an exception, which is the `__cause__`."""


class DataError(InputError):
    """A dataset is missing, unreadable or has too many broken samples."""


class SamplerError(InputError, ValueError):
    """A sampler of `hpcbal.samplers` was given, or asked for, something that it cannot do."""


class ClusterError(InputError):
    """The allocation does not have what the config needs."""


class OutputError(InputError):
    """The output directory cannot be used: not writable, full, or used by another run."""


class LedgerError(InputError):
    """A line of a ledger is damaged, or written by a version of hpcbal that this one cannot read."""


class PolicyError(HpcbalError):
    """A decision was requested that has no valid answer."""


class CheckpointError(HpcbalError):
    """A checkpoint file is damaged or does not fit the DNN."""
