"""Start-up steps that all ranks take together: all succeed, or all leave with one sentence told."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from mpi4py import MPI

from hpcbal.cluster.roles import SCHEDULER_RANK
from hpcbal.errors import HpcbalError
from hpcbal.runtime.channel import first_error, patient_allgather
from hpcbal.stderr import say

T = TypeVar("T")


class ToldError(Exception):
    """All ranks know of an error, and rank 0 has told it; all leave with `code`."""

    def __init__(self, code: int) -> None:
        self.code = code
        super().__init__(code)


def together(world: MPI.Intracomm, work: Callable[[], T]) -> T:
    """Run `work` on every rank and wait for all; collective, so `work` must not be, unless it cannot fail.

    Raises:
        ToldError: on all ranks, when `work` raised an error for the user on any of them.
    """
    error: HpcbalError | None = None
    result: T | None = None
    try:
        result = work()
    except HpcbalError as caught:
        error = caught
    worst = first_error(patient_allgather(world, error))
    if worst is not None:
        if world.rank == SCHEDULER_RANK:
            say(f"hpcbal: {worst}")
        assert isinstance(worst, HpcbalError)
        raise ToldError(int(worst.exit_code))
    return result  # type: ignore[return-value]
