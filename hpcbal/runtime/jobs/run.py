"""Perform a rank's part in a run of one or many parameter-server jobs, or in a profile of one."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Protocol, TypeAlias

from mpi4py import MPI

from hpcbal.cluster.roles import SCHEDULER_RANK
from hpcbal.comm.collectives import all_or_none
from hpcbal.config import JobsConfig, ParamServerConfig
from hpcbal.errors import ClusterError
from hpcbal.garbage import collect_as_usual
from hpcbal.paramserver.coscheduling.scheduler import JobScheduler
from hpcbal.paramserver.engine.mpi_transport import MpiTransport
from hpcbal.runtime.jobs.checkpoint import JOBS_FOLDER
from hpcbal.runtime.jobs.coscheduling import SWITCH_INTERVAL_S, Coscheduling
from hpcbal.runtime.jobs.groups import policy_of
from hpcbal.runtime.jobs.job_rank import JobRank, SliceTrace
from hpcbal.runtime.jobs.loading import load_job
from hpcbal.runtime.jobs.master import Master
from hpcbal.runtime.jobs.one_job import OneJob
from hpcbal.runtime.jobs.opening import OpenedJobs
from hpcbal.runtime.jobs.profiling import OpenedProfile, OperationTrace, profile_master
from hpcbal.runtime.jobs.record import Record
from hpcbal.runtime.jobs.shared_rank import SharedRank
from hpcbal.runtime.rank.context import LiveRank
from hpcbal.runtime.record.final_report import write_final_report
from hpcbal.telemetry.files.run_directory import RunDirectory

TransportOf: TypeAlias = Callable[[int], MpiTransport]
"""Makes the transport of a job's start, from the start's number."""


class Executor(Protocol):
    """The part of a rank beside the scheduler."""

    def run(self) -> int:
        """Perform the rank's part; returns the exit code of the run."""


def run_one_job(
    world: MPI.Intracomm, rank: LiveRank, config: ParamServerConfig, opened: OpenedJobs | None
) -> int:
    """Perform this rank's part of a job that has all ranks for itself; collective.

    Args:
        world: communicator of all ranks.
        rank: this rank.
        config: the configuration.
        opened: the files, on rank 0 only.

    Returns: the exit code, the same on all ranks.
    """
    loaded = all_or_none(world, lambda: load_job(config))

    def master() -> Master:
        assert opened is not None
        executors, (job,) = rank.roles.executor_ranks, opened.jobs.values()
        job.loaded, job.cut = loaded, job.cut_of(loaded, len(executors), opened.run)
        return _master(rank, opened, OneJob(config, job, executors, opened.run.executors))

    def executor(transport_of: TransportOf) -> Executor:
        return JobRank(rank, config, loaded, transport_of, SliceTrace(rank.slices, config.name))

    return _perform(world, master, executor, _final_report(rank))


def profile_job(
    world: MPI.Intracomm, rank: LiveRank, config: ParamServerConfig, opened: OpenedProfile | None
) -> int:
    """Perform this rank's part in taking and recording a few turns of a job; see `run_one_job`."""
    loaded = all_or_none(world, lambda: load_job(config))

    def master() -> Master:
        assert opened is not None
        return profile_master(rank, opened, loaded)

    def executor(transport_of: TransportOf) -> Executor:
        return JobRank(rank, config, loaded, transport_of, OperationTrace())

    return _perform(world, master, executor, lambda: None)


def run_many_jobs(world: MPI.Intracomm, rank: LiveRank, config: JobsConfig, opened: OpenedJobs | None) -> int:
    """Perform this rank's part of jobs that share machines; see `run_one_job`."""
    all_or_none(world, _check_threads)
    sys.setswitchinterval(SWITCH_INTERVAL_S)

    def master() -> Master:
        assert opened is not None
        num_machines = len(rank.roles.executor_ranks)
        jobs = JobScheduler(rank.roles.executor_ranks, policy_of(config, num_machines))
        return _master(rank, opened, Coscheduling(config, opened.run, num_machines, jobs, opened.unrecorded))

    def executor(transport_of: TransportOf) -> Executor:
        return SharedRank(rank, config, transport_of)

    return _perform(world, master, executor, _final_report(rank))


def _perform(
    world: MPI.Intracomm,
    master: Callable[[], Master],
    executor: Callable[[TransportOf], Executor],
    finish: Callable[[], None],
) -> int:
    """Run the master on rank 0, and then `finish`; on other ranks an executor."""
    frames = world.Dup()
    if world.rank == SCHEDULER_RANK:
        role: Master | Executor = all_or_none(world, master)
    else:
        role = all_or_none(world, lambda: executor(lambda start: MpiTransport(frames, start)))
    collect_as_usual()
    code = role.run()
    if world.rank == SCHEDULER_RANK:
        finish()
    frames.Free()
    return code


def _final_report(rank: LiveRank) -> Callable[[], None]:
    return lambda: write_final_report(RunDirectory(rank.output, JOBS_FOLDER))


def _check_threads() -> None:
    if MPI.Query_thread() < MPI.THREAD_SERIALIZED:
        raise ClusterError(
            "kind: jobs needs an MPI that several threads of a rank may call, one at a time "
            "(MPI_THREAD_SERIALIZED); use one that was built with support for threads"
        )


def _master(rank: LiveRank, opened: OpenedJobs, placement: OneJob | Coscheduling) -> Master:
    """Return the master of jobs that are placed so, ready to run."""
    opened.claim.record()
    record = Record(opened, rank.roles, placement)
    for note in opened.notes:
        record.note(note)
    master = Master(rank, opened.request, opened.run, opened.jobs, record)
    master.placement = placement
    placement.begin(master, record)
    return master
