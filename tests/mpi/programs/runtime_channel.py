"""Messages and patient collectives over real ranks; prints 'fine' on rank 0."""

from __future__ import annotations

import resource
import time

from mpi4py import MPI

from hpcbal.comm.collectives import (
    first_error,
    patient_allgather,
    patient_barrier,
    patient_broadcast,
    patient_gather,
)
from hpcbal.comm.mpi_channel import MpiChannel
from hpcbal.control.messages import DnnFailed
from hpcbal.runtime.wire.protocol import Happened, Heartbeat, Shutdown

NUM_MESSAGES = 200


def check_order_and_size(channel: MpiChannel) -> None:
    """All messages of each rank arrive in the order of sending, long ones among short ones."""
    if channel.rank:
        for number in range(NUM_MESSAGES):
            detail = "x" * (300_000 if number % 50 == 0 else 10)
            channel.send(0, Happened(number, DnnFailed(str(channel.rank), "error", detail)))
        assert channel.flush(30.0)
        channel.send(0, Shutdown(channel.rank))
        source, message = channel.wait()
        assert (source, message) == (0, Heartbeat(f"for {channel.rank}"))
        return
    serials: dict[int, list[int]] = {rank: [] for rank in range(1, channel.size)}
    open_ranks = set(serials)
    while open_ranks:
        source, message = channel.wait()
        if isinstance(message, Shutdown):
            assert message.exit_code == source
            open_ranks.remove(source)
        else:
            assert isinstance(message, Happened)
            assert isinstance(message.event, DnnFailed)
            assert message.event.dnn_id == str(source)
            assert len(message.event.detail) == (300_000 if message.serial % 50 == 0 else 10)
            serials[source].append(message.serial)
    assert all(found == list(range(NUM_MESSAGES)) for found in serials.values()), serials
    for rank in serials:
        channel.send(rank, Heartbeat(f"for {rank}"))
    assert channel.flush()
    assert channel.receive() is None


def check_way_out(channel: MpiChannel) -> None:
    """What runs meanwhile may end a wait."""
    polls = 0

    def meanwhile() -> None:
        nonlocal polls
        polls += 1
        if polls == 20:
            raise InterruptedError

    try:
        channel.wait(meanwhile)
    except InterruptedError:
        assert polls == 20
    else:
        raise AssertionError("nothing was sent, but something came")


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


def main() -> None:
    world = MPI.COMM_WORLD
    channel = MpiChannel(world.Dup())
    assert (channel.rank, channel.size) == (world.rank, world.size)
    check_order_and_size(channel)
    patient_barrier(world)
    check_way_out(channel)
    check_collectives(world)
    check_patience(world)
    patient_barrier(world)
    if world.rank == 0:
        print("fine")


main()
