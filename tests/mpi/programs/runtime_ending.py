"""Ranks that cannot continue: argument 1 says why; only the reason is printed."""

from __future__ import annotations

import os
import sys
import time

from mpi4py import MPI

from hpcbal.cluster.roles import RankInfo
from hpcbal.comm.collectives import patient_allgather, patient_barrier
from hpcbal.errors import OutputError
from hpcbal.runtime.handoff.rank_process import Activity
from hpcbal.runtime.health.ending import JobEnd, write_last_words
from hpcbal.runtime.health.watchdog import PeerWatchdog


def main(what: str) -> None:
    world = MPI.COMM_WORLD
    activity = Activity()
    end = JobEnd(world, activity)
    end.share(world)
    infos = [
        RankInfo(rank, 0, "here", pid, 0) for rank, pid in enumerate(patient_allgather(world, os.getpid()))
    ]

    def on_death(message: str) -> None:
        if not end.announced():
            write_last_words(f"rank {world.rank} saw: {message}")
        time.sleep(2.0)
        end.abort(9)

    peers = [info for info in infos if info.rank != world.rank]
    watchdog = PeerWatchdog(infos[world.rank], peers, lambda rank: "worker", end.activity_of, on_death)
    watchdog.start()
    assert not end.announced()
    activity.note(f"training net-{world.rank}")
    patient_barrier(world)
    assert [end.activity_of(rank) for rank in range(world.size)] == [
        f"training net-{rank}" for rank in range(world.size)
    ]
    patient_barrier(world)
    if world.rank == 1 and what != "nothing":
        try:
            raise OutputError("disk: full") if what == "ours" else ZeroDivisionError("a bug")
        except Exception as error:
            end.abort_for(error)
    if what != "nothing":
        time.sleep(30.0)
    watchdog.stop()
    patient_barrier(world)
    end.close()


main(sys.argv[1])
