"""Collectives for start-up: patient ones, and steps that all ranks take together."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from mpi4py import MPI

from hpcbal.comm.backoff import Backoff
from hpcbal.comm.mpi import wait_for
from hpcbal.errors import HpcbalError, UserCodeError
from hpcbal.processes import say
from hpcbal.user_code import report

log = logging.getLogger(__name__)


def patient_gather(comm: MPI.Intracomm, value: Any) -> list[Any] | None:
    """Gather one picklable value per rank on rank 0, sleeping between polls; collective.

    MPI's own collectives spin while they wait, and so take the cores from a rank that still works (for
    example loads TensorFlow).

    Returns:
        The values in order of rank on rank 0, None on all other ranks.
    """
    if comm.rank != 0:
        wait_for(comm.isend(value, dest=0, tag=0))
        return None
    values: list[Any] = [None] * comm.size
    values[0] = value
    for source in range(1, comm.size):
        values[source] = _receive_from(comm, source)
    return values


def patient_broadcast(comm: MPI.Intracomm, value: Any) -> Any:
    """Broadcast a picklable value from rank 0, sleeping between polls; collective."""
    if comm.rank == 0:
        for request in [comm.isend(value, dest=peer, tag=0) for peer in range(1, comm.size)]:
            wait_for(request)
        return value
    return _receive_from(comm, 0)


def patient_allgather(comm: MPI.Intracomm, value: Any) -> list[Any]:
    """Gather one picklable value per rank on all ranks, sleeping between polls; collective."""
    values: list[Any] = patient_broadcast(comm, patient_gather(comm, value))
    return values


def patient_barrier(comm: MPI.Intracomm) -> None:
    """Wait for all ranks of `comm` without burning a core; collective."""
    wait_for(comm.Ibarrier())


def _receive_from(comm: MPI.Intracomm, source: int) -> Any:
    backoff = Backoff.idle()
    while not comm.iprobe(source, 0):
        backoff.wait()
    return comm.recv(source=source, tag=0)


def first_error(outcomes: Sequence[BaseException | None]) -> BaseException | None:
    """Return the error of the lowest rank that has one."""
    return next((error for error in outcomes if error is not None), None)


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
