"""Jobs on parameter servers over real ranks, with blocks that move."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
from mpi4py import MPI

sys.path.insert(0, str(Path(__file__).parents[2] / "helpers"))
from paramserver_apps import APPS
from paramserver_job import Rotation, SavedBlocks, Setup, parameter_blocks

from hpcbal.comm.collectives import patient_allgather
from hpcbal.comm.mpi import MpiChannel
from hpcbal.paramserver.alone import train_alone
from hpcbal.paramserver.engine.executor import Executor
from hpcbal.paramserver.engine.mpi_transport import MpiTransport


def train(world: MPI.Intracomm, setup: Setup, least_moves: int) -> SavedBlocks:
    """Train to the end, with at least so many reconfigurations, and return the checkpoint."""
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
        assert len(master.reconfigured) >= least_moves
    for blocks in patient_allgather(world, saved.blocks):
        saved.blocks |= blocks
    return saved


def move_blocks(world: MPI.Intracomm, name: str) -> None:
    """Train an app; rank 0 compares the tables with those of one process."""
    setup = Setup(APPS[name], [1, 2], [3], mini_batch=20, epochs=3, after=Rotation(2, 3))
    saved = train(world, replace(setup, memory_bytes=20_000), least_moves=3)
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
