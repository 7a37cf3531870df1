"""Wait for an MPI operation without burning a core."""

from __future__ import annotations

from mpi4py import MPI

from hpcbal.dataplane.waiting import Backoff


def wait_for(request: MPI.Request) -> None:
    """Complete `request`, testing it with a backoff.

    Raises:
        MPI.Exception: the operation failed.
    """
    backoff = Backoff()
    while not request.Test():
        backoff.wait()
