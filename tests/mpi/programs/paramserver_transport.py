"""Frames over real ranks; prints 'fine' on rank 0."""

from __future__ import annotations

from mpi4py import MPI
from transport_contract import check_transport

from hpcbal.comm.collectives import patient_barrier
from hpcbal.paramserver.engine.mpi_transport import MpiTransport


def main() -> None:
    world = MPI.COMM_WORLD
    transport = MpiTransport(world.Dup())
    assert (transport.rank, transport.size) == (world.rank, world.size)
    check_transport(transport, lambda: patient_barrier(world))
    transport.close()
    if world.rank == 0:
        print("fine")


main()
