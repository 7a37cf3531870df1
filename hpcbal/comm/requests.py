"""Wait for an MPI operation without burning a core."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from hpcbal.comm.backoff import Backoff

if TYPE_CHECKING:
    from mpi4py import MPI


def wait_for(request: MPI.Request, poll: Callable[[], None] | None = None) -> None:
    """Complete `request`; test it with a backoff.

    Args:
        poll: called repeatedly during the wait, where it may be long.

    Raises:
        MPI.Exception: if the operation failed.
    """
    backoff = Backoff()
    while not request.Test():
        if poll is not None:
            poll()
        backoff.wait()
