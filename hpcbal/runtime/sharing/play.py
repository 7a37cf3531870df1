"""Play a rank's role in a run of many parameter-server jobs."""

from __future__ import annotations

import sys

from mpi4py import MPI

from hpcbal.cluster.roles import SCHEDULER_RANK
from hpcbal.comm.collectives import all_or_none
from hpcbal.config import JobsConfig
from hpcbal.errors import ClusterError
from hpcbal.paramserver.engine.mpi_transport import MpiTransport
from hpcbal.paramserver.sharing.scheduler import Scheduler
from hpcbal.runtime.paramserver.opening import JOBS
from hpcbal.runtime.rank.context import LiveRank
from hpcbal.runtime.record.final_report import write_final_report
from hpcbal.runtime.sharing.host import MachineHost
from hpcbal.runtime.sharing.master import JobsMaster
from hpcbal.runtime.sharing.opening import OpenedJobs
from hpcbal.runtime.sharing.paradigms import policy_of
from hpcbal.runtime.sharing.record import JobsRecord
from hpcbal.telemetry import RunDirectory

SWITCH_INTERVAL_S = 5e-4
"""How long a thread that computes in Python keeps the one waiting that serves all jobs: that of a machine
while apps compute, and the master's while the scheduler decides."""


def play_jobs(world: MPI.Intracomm, rank: LiveRank, config: JobsConfig, opened: OpenedJobs | None) -> int:
    """Play the role of this rank; collective. Returns the exit code, the same on all ranks.

    Args:
        world: communicator of all ranks.
        rank: this rank.
        config: the configuration.
        opened: the run's files, on rank 0 only.
    """
    all_or_none(world, _check_threads)
    frames = world.Dup()
    sys.setswitchinterval(SWITCH_INTERVAL_S)
    if world.rank == SCHEDULER_RANK:
        assert opened is not None
        master = all_or_none(world, lambda: _master(rank, config, opened))
        code = master.run()
        write_final_report(RunDirectory(rank.output, JOBS))
    else:
        host = all_or_none(
            world, lambda: MachineHost(rank, config, lambda start: MpiTransport(frames, start))
        )
        code = host.run()
    frames.Free()
    return code


def _check_threads() -> None:
    if MPI.Query_thread() < MPI.THREAD_SERIALIZED:
        raise ClusterError(
            "kind: jobs needs an MPI that several threads of a rank may call, one at a time "
            "(MPI_THREAD_SERIALIZED); use one that was built with support for threads"
        )


def _master(rank: LiveRank, config: JobsConfig, opened: OpenedJobs) -> JobsMaster:
    machines = rank.roles.executor_ranks
    jobs = Scheduler(machines, policy_of(config, len(machines)))
    opened.claim.record()
    record = JobsRecord(opened, rank.roles)
    for note in opened.notes:
        record.note(note)
    return JobsMaster(rank, config, opened, jobs, record)
