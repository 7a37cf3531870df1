"""Messages and patient collectives over real ranks, and an end without trouble."""

from __future__ import annotations

import resource
import time
from functools import partial

from cases import try_cases
from channel_contract import check_channel, check_group_comm
from mpi4py import MPI
from runtime_ending import play

from hpcbal.comm.collectives import (
    first_error,
    patient_allgather,
    patient_barrier,
    patient_broadcast,
    patient_gather,
)
from hpcbal.comm.mpi import MpiChannel, MpiGroupComm


def check_collectives(comm: MPI.Intracomm) -> None:
    everyone = list(range(comm.size))
    for _ in range(20):
        assert patient_gather(comm, comm.rank) == (everyone if comm.rank == 0 else None)
        assert patient_broadcast(comm, {"from": comm.rank}) == {"from": 0}
        assert patient_allgather(comm, comm.rank) == everyone
    errors = [ValueError(rank) if rank else None for rank in everyone]
    worst = first_error(patient_allgather(comm, errors[comm.rank]))
    assert comm.size == 1 or str(worst) == "1"
    assert first_error([None, None]) is None


def check_patience(comm: MPI.Intracomm) -> None:
    """Who waits for a late rank leaves it the cores."""
    before = resource.getrusage(resource.RUSAGE_SELF)
    if comm.rank == 0:
        time.sleep(1.0)
    patient_barrier(comm)
    patient_broadcast(comm, None)
    after = resource.getrusage(resource.RUSAGE_SELF)
    spent_s = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    assert spent_s < 0.5, f"rank {comm.rank} burnt {spent_s} s of a core while it waited for 1 s"


def check_all(world: MPI.Intracomm) -> None:
    channel = MpiChannel(world.Dup())
    assert (channel.rank, channel.size) == (world.rank, world.size)
    check_channel(channel, lambda: patient_barrier(world))
    check_group_comm(MpiGroupComm(world))
    check_collectives(world)
    check_patience(world)


if __name__ == "__main__":
    try_cases(
        [
            *((f"{num_ranks} ranks", num_ranks, check_all) for num_ranks in (1, 2, 4)),
            ("ending", 3, partial(play, what="nothing")),
        ]
    )
