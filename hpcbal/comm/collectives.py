"""Collectives for start-up that sleep while they wait, so that the slowest rank gets the cores."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from mpi4py import MPI

from hpcbal.comm.backoff import Backoff
from hpcbal.comm.requests import wait_for


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
