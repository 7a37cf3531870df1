"""With which code a command ends: by the outcome of a run, by an error, or by what a lost start has left."""

from __future__ import annotations

import signal
from collections.abc import Mapping
from dataclasses import dataclass

from hpcbal.errors import ExitCode, HpcbalError

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


LOST = "lost: "
"""Begins the line of the end file that says which rank was lost."""


def ends_job(line: str) -> bool:
    """Whether a line of the end file says how the job has ended; the first one that does counts.

    A rank that is lost, or that ends the job, takes others with it, which may be noted later.
    """
    return line.isdecimal() or line.startswith(LOST)


@dataclass(frozen=True, slots=True)
class JobEnd:
    """How a batch job has ended.

    Attributes:
        code: its exit code.
        is_lost: whether a node, a rank or the launcher was lost; the same command may continue.
        sentence: what the user should know; empty if the run has said it.
    """

    code: int
    is_lost: bool = False
    sentence: str = ""


def end_of_job(noted: str, status: int) -> JobEnd:
    """Return how a job has ended, by what rank 0 has noted; it outweighs the code of the launcher.

    mpirun also ends with 0 when it has lost a node, and with the code of a process that a model has ended.

    Args:
        noted: the content of the job's end file (`runtime.handoff.end_file`).
        status: code of the launcher.
    """
    lines = noted.splitlines()
    end = next(filter(ends_job, lines), "")
    if end.isdecimal():
        return JobEnd(int(end))
    if end:
        return JobEnd(ExitCode.INTERNAL_ERROR, is_lost=True, sentence=end.removeprefix(LOST))
    if lines and status == ExitCode.RUN_AGAIN:
        return JobEnd(
            ExitCode.INTERNAL_ERROR,
            sentence="a process has ended itself with code 75, for example in a model; the run has not "
            "stopped cleanly",
        )
    is_own = status in (ExitCode.INTERNAL_ERROR, ExitCode.WRONG_INPUT, ExitCode.FAILED_DNNS, ExitCode.STALLED)
    by_signal = 128 < status <= 128 + signal.SIGRTMAX
    if status == 0 or by_signal or (lines and not is_own):
        return JobEnd(
            ExitCode.INTERNAL_ERROR,
            is_lost=by_signal or bool(lines),
            sentence=f"the launcher has ended with {status}, but the run has recorded no end: a node, a rank "
            "or the launcher was lost; its messages above name a node that was lost",
        )
    return JobEnd(status)
