"""Ranks that cannot continue: argument 1 says why; only the reason is printed."""

from __future__ import annotations

import os
import sys
import time

from mpi4py import MPI

from hpcbal.cluster.roles import RankInfo
from hpcbal.comm.collectives import patient_allgather, patient_barrier
from hpcbal.errors import OutputError
from hpcbal.runtime.health.ending import JobEnder
from hpcbal.runtime.health.liveness import Liveness


def play(world: MPI.Intracomm, what: str) -> None:
    liveness = Liveness(world.rank)
    end = JobEnder(world, liveness)
    end.share(world)
    infos = [
        RankInfo(rank, 0, "here", pid, 0) for rank, pid in enumerate(patient_allgather(world, os.getpid()))
    ]
    liveness.start()
    liveness.watch(world.rank, infos, lambda rank: "worker", lambda code: end.abort(9))
    assert not liveness.is_ending()
    liveness.note(f"training net-{world.rank}")
    patient_barrier(world)
    assert [liveness.note_of(rank) for rank in range(world.size)] == [
        (1, f"training net-{rank}") for rank in range(world.size)
    ]
    patient_barrier(world)
    if world.rank == 1 and what != "nothing":
        try:
            raise OutputError("disk: full") if what == "ours" else ZeroDivisionError("a bug")
        except Exception as error:
            end.abort_for(error)
    if what != "nothing":
        time.sleep(30.0)
    liveness.stop()
    patient_barrier(world)
    end.close()


if __name__ == "__main__":
    play(MPI.COMM_WORLD, sys.argv[1])
