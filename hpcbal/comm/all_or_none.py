"""Start-up steps that all ranks take together: all succeed, or all leave after one reported error."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TypeVar

from mpi4py import MPI

from hpcbal.comm.collectives import first_error, patient_allgather
from hpcbal.errors import HpcbalError, UserCodeError
from hpcbal.stderr import say
from hpcbal.user_code import report

log = logging.getLogger(__name__)

T = TypeVar("T")

REPORTING_RANK = 0


class ReportedError(Exception):
    """All ranks know that a step failed, and one of them has reported why; all exit with `code`."""

    def __init__(self, code: int) -> None:
        self.code = code
        super().__init__(code)


def all_or_none(world: MPI.Intracomm, work: Callable[[], T]) -> T:
    """Run `work` on every rank and wait for all; collective.

    `work` must not be collective itself, unless it cannot fail.

    Raises:
        ReportedError: on all ranks, if `work` raised an error for the user on any of them.
    """
    error: HpcbalError | None = None
    result: T | None = None
    try:
        result = work()
    except HpcbalError as caught:
        error = caught
        if isinstance(caught, UserCodeError) and world.rank != REPORTING_RANK:
            log.error("%s", report(caught))  # the sentence is reported below; the traceback is in the log
    worst = first_error(patient_allgather(world, error))
    if worst is not None:
        if world.rank == REPORTING_RANK:
            say(f"hpcbal: {worst}")
        assert isinstance(worst, HpcbalError)
        raise ReportedError(int(worst.exit_code))
    return result  # type: ignore[return-value]
