"""Cases of an MPI program, one after the other in one start, because each start of a rank takes its time."""

from __future__ import annotations

import sys
import traceback
from collections.abc import Callable, Iterable
from typing import cast

from mpi4py import MPI

from hpcbal.comm.mpi import wait_for

Case = Callable[[MPI.Intracomm], None]


def try_cases(cases: Iterable[tuple[str, int, Case]]) -> None:
    """Try the cases; rank 0 prints `passed NAME` after each. What escapes a rank ends the job.

    Args:
        cases: of each its name, how many ranks take part, the first ones of the world, and what they do. The
            others sleep; during a case whose name ends in "beside other work", they keep their cores busy.
    """
    world = MPI.COMM_WORLD
    try:
        for name, num_ranks, case in cases:
            takes_part = world.rank < num_ranks
            comm = world.Split(0 if takes_part else MPI.UNDEFINED, world.rank)
            if takes_part:
                case(cast(MPI.Intracomm, comm))
                comm.Free()
            end = world.Ibarrier()
            while name.endswith("beside other work") and not end.Test():
                pass
            wait_for(end)
            if world.rank == 0:
                print("passed", name, flush=True)
    except BaseException:
        traceback.print_exc()
        sys.stderr.flush()
        world.Abort(1)
