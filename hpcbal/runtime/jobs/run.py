"""Perform a rank's part in a run of one or many parameter-server jobs."""

from __future__ import annotations

import sys
from typing import TypeAlias

from mpi4py import MPI

from hpcbal.cluster.roles import SCHEDULER_RANK
from hpcbal.comm.collectives import all_or_none
from hpcbal.config import JobsConfig, ParamServerConfig
from hpcbal.errors import ClusterError
from hpcbal.paramserver.engine.mpi_transport import MpiTransport
from hpcbal.paramserver.sharing.scheduler import JobScheduler
from hpcbal.runtime.handoff.launch_dir import RunRequest
from hpcbal.runtime.jobs.checkpoint import JOBS
from hpcbal.runtime.jobs.coscheduling import SWITCH_INTERVAL_S, Coscheduling
from hpcbal.runtime.jobs.groups import policy_of
from hpcbal.runtime.jobs.job_rank import JobRank, SliceTrace
from hpcbal.runtime.jobs.loading import LoadedJob, load_job
from hpcbal.runtime.jobs.master import Master
from hpcbal.runtime.jobs.one_job import OneJob
from hpcbal.runtime.jobs.opening import OpenedJobs, open_jobs
from hpcbal.runtime.jobs.profiling import OpenedProfile, OperationTrace, open_profile, profile_master
from hpcbal.runtime.jobs.record import Record
from hpcbal.runtime.jobs.shared_rank import SharedRank
from hpcbal.runtime.rank.context import LiveRank
from hpcbal.runtime.record.final_report import write_final_report
from hpcbal.telemetry import RunDirectory

Opened: TypeAlias = OpenedJobs | OpenedProfile
"""The files of a run, or those of a profile of its job."""


def open_run_of_jobs(request: RunRequest, config: ParamServerConfig | JobsConfig) -> Opened:
    """Open or create the directory of a run, or of a profile if the request asks for one, on rank 0.

    Raises:
        OutputError: if the directory is not writable, full, locked, not made by hpcbal, or another run's.
        CheckpointError: if a checkpoint cannot be used.
        FailedJobError: if the only job of the run has failed and is not to be tried again.
    """
    if isinstance(config, ParamServerConfig) and request.num_operation_steps is not None:
        return open_profile(request, config, request.num_operation_steps)
    return open_jobs(request, config)


def run_jobs(
    world: MPI.Intracomm,
    rank: LiveRank,
    config: ParamServerConfig | JobsConfig,
    opened: Opened | None,
    *,
    is_profile: bool,
) -> int:
    """Perform this rank's part; collective. Returns the exit code, the same on all ranks.

    Args:
        world: communicator of all ranks.
        rank: this rank.
        config: the configuration.
        opened: the files, on rank 0 only.
        is_profile: whether a few turns are taken and recorded, rather than the job trained.
    """
    loaded: LoadedJob | None = None
    if isinstance(config, ParamServerConfig):
        loaded = all_or_none(world, lambda: load_job(config))
    else:
        all_or_none(world, _check_threads)
        sys.setswitchinterval(SWITCH_INTERVAL_S)
    frames = world.Dup()
    if world.rank == SCHEDULER_RANK:
        code = all_or_none(world, lambda: _master(rank, config, loaded, opened)).run()
        if not is_profile:
            write_final_report(RunDirectory(rank.output, JOBS))
    else:
        code = all_or_none(world, lambda: _executor(rank, config, loaded, frames, is_profile)).run()
    frames.Free()
    return code


def _check_threads() -> None:
    if MPI.Query_thread() < MPI.THREAD_SERIALIZED:
        raise ClusterError(
            "kind: jobs needs an MPI that several threads of a rank may call, one at a time "
            "(MPI_THREAD_SERIALIZED); use one that was built with support for threads"
        )


def _executor(
    rank: LiveRank,
    config: ParamServerConfig | JobsConfig,
    loaded: LoadedJob | None,
    frames: MPI.Intracomm,
    is_profile: bool,
) -> JobRank | SharedRank:
    """Return what this rank does beside the scheduler."""

    def transport_of(start: int) -> MpiTransport:
        return MpiTransport(frames, start)

    if isinstance(config, JobsConfig):
        return SharedRank(rank, config, transport_of)
    assert loaded is not None
    trace = OperationTrace() if is_profile else SliceTrace(rank.slices, config.name)
    return JobRank(rank, config, loaded, transport_of, trace)


def _master(
    rank: LiveRank,
    config: ParamServerConfig | JobsConfig,
    loaded: LoadedJob | None,
    opened: Opened | None,
) -> Master:
    """Return the master, ready to run."""
    executors = rank.roles.executor_ranks
    if isinstance(opened, OpenedProfile):
        assert loaded is not None
        return profile_master(rank, opened, loaded)
    assert opened is not None
    if isinstance(config, JobsConfig):
        jobs = JobScheduler(executors, policy_of(config, len(executors)))
        placement: OneJob | Coscheduling = Coscheduling(
            config, opened.run, len(executors), jobs, opened.unrecorded
        )
    else:
        assert loaded is not None
        (job,) = opened.jobs.values()
        job.loaded, job.cut = loaded, job.cut_of(loaded, len(executors), opened.run)
        placement = OneJob(config, job, executors, opened.run.executors)
    opened.claim.record()
    record = Record(opened, rank.roles, placement)
    for note in opened.notes:
        record.note(note)
    master = Master(rank, opened.request, opened.run, opened.jobs, record)
    master.placement = placement
    placement.begin(master, record)
    return master
