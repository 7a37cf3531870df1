"""Jobs on parameter servers over real ranks, with blocks that move; prints 'fine' on rank 0."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
from mpi4py import MPI

sys.path.insert(0, str(Path(__file__).parents[2] / "helpers"))
from paramserver_apps import APPS
from paramserver_job import Rotation, SavedBlocks, Setup, parameter_blocks

from hpcbal.comm.collectives import patient_allgather, patient_barrier
from hpcbal.comm.mpi import MpiChannel
from hpcbal.paramserver.alone import train_alone
from hpcbal.paramserver.engine.executor import Executor
from hpcbal.paramserver.engine.mpi_transport import MpiTransport


def play(world: MPI.Intracomm, setup: Setup) -> None:
    """Train; rank 0 compares the tables with those of one process."""
    transport, channel = MpiTransport(world.Dup()), MpiChannel(world.Dup())
    saved = SavedBlocks()
    if world.rank:
        executor = Executor(transport, channel, setup.job(), None, saved)
        assert executor.run() == 0
        executor.close()
    else:
        master = setup.master(channel)
        master.run()
        transport.close()
        assert master.end is not None
        assert master.end.outcome == "done", master.end
        assert len(master.reconfigured) >= 3
    for blocks in patient_allgather(world, saved.blocks):
        saved.blocks |= blocks
    if world.rank == 0:
        layout = setup.job().layout
        alone, _ = train_alone(
            setup.make_app(),
            setup.epochs,
            mini_batch=setup.mini_batch,
            seed=setup.seed,
            num_data_blocks=setup.num_data_blocks,
            parameter_blocks=parameter_blocks(layout),
        )
        for table, values in saved.tables(layout, 1).items():
            np.testing.assert_allclose(values, alone.values[table], rtol=1e-10, atol=1e-12)


def main() -> None:
    world = MPI.COMM_WORLD
    for name in APPS:
        setup = Setup(APPS[name], [1, 2], [3], mini_batch=20, epochs=3, after=Rotation(2, 3))
        play(world, replace(setup, memory_bytes=20_000))
    patient_barrier(world)
    if world.rank == 0:
        print("fine")


main()
