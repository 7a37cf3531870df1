"""The cases of the engine of the parameter servers."""

from __future__ import annotations

from functools import partial

from cases import try_cases
from mpi4py import MPI
from paramserver_ledger import count_updates
from paramserver_moves import APPS, move_blocks
from transport_contract import check_transport

from hpcbal.comm.collectives import patient_barrier
from hpcbal.paramserver.engine.mpi_transport import MpiTransport


def send_frames(world: MPI.Intracomm) -> None:
    """Frames arrive whole and in order."""
    transport = MpiTransport(world.Dup())
    assert (transport.rank, transport.size) == (world.rank, world.size)
    check_transport(transport, lambda: patient_barrier(world))
    transport.close()


if __name__ == "__main__":
    try_cases(
        [
            ("frames", 3, send_frames),
            *((f"moves of {name}", 4, partial(move_blocks, name=name)) for name in APPS),
            *(
                (f"ledger {name}", 5, partial(count_updates, staleness=staleness))
                for name, staleness in (("sync", 0), ("stale", 2), ("async", None))
            ),
        ]
    )
