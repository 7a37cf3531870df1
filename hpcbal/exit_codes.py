"""With which code a command ends: by the outcome of a run, or by an error."""

from __future__ import annotations

from collections.abc import Mapping

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
