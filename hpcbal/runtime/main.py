"""One rank of a job, from its first line to its exit code."""

from __future__ import annotations

import logging
import socket
from contextlib import ExitStack
from pathlib import Path
from typing import cast

from mpi4py import MPI

from hpcbal.cluster.discovery import discover, discover_executors, split_by_node
from hpcbal.cluster.launch_line import Launcher
from hpcbal.cluster.roles import SCHEDULER_RANK, Roles
from hpcbal.comm.collectives import all_or_none, patient_allgather, patient_barrier, patient_broadcast
from hpcbal.comm.mpi import MpiChannel
from hpcbal.config import AnyConfig, EnsembleConfig, JobsConfig, ParamServerConfig, add_import_roots
from hpcbal.runtime.handoff.launch_dir import RunRequest, load_requested
from hpcbal.runtime.handoff.start_file import StartFile
from hpcbal.runtime.health.ending import JobEnd, StopFlag
from hpcbal.runtime.health.liveness import Liveness
from hpcbal.runtime.job import run_in_job
from hpcbal.runtime.jobs.run import Opened, open_run_of_jobs, run_jobs
from hpcbal.runtime.rank.context import LiveRank, RankContext
from hpcbal.runtime.rank.data import RankData
from hpcbal.runtime.rank.shared_data import open_data
from hpcbal.runtime.resuming.opening import OpenedRun, open_run
from hpcbal.runtime.start.recipe import Setting
from hpcbal.runtime.start.table import RECIPES
from hpcbal.telemetry import RunDirectory, configure_rank_logging
from hpcbal.telemetry.streams.slices import SliceRecorder
from hpcbal.telemetry.views.read_status import note_death

log = logging.getLogger(__name__)


def run_rank(request: RunRequest, launcher: Launcher, stop: StopFlag, liveness: Liveness) -> int:
    """Run one rank of `hpcbal run`; returns the exit code, which is the same on all ranks.

    Args:
        request: what the command line asked for.
        launcher: the launcher that started this process.
        stop: the stop flag, which already catches signals.
        liveness: of this rank.
    """
    return run_in_job(
        launcher, liveness, lambda world, end, logs: _run(world, request, stop, liveness, end, logs)
    )


def _run(
    world: MPI.Intracomm,
    request: RunRequest,
    stop: StopFlag,
    liveness: Liveness,
    end: JobEnd,
    logs: ExitStack,
) -> int:
    start = StartFile.of_rank()
    with ExitStack() as stack:
        opened = all_or_none(world, lambda: _open(request) if world.rank == SCHEDULER_RANK else None)
        if opened is not None:
            stack.callback(opened.close)
        config, output = patient_broadcast(
            world, (opened.config, opened.run.root) if opened is not None else None
        )
        add_import_roots(request.config_path)
        _start_logs(world, output, request.log_level, logs)
        node_comm = split_by_node(world, config.slots.ranks_per_node)
        roles = all_or_none(world, lambda: _discover(world, node_comm, config))
        end.share(node_comm)
        status = RunDirectory(output).status
        liveness.watch(
            world.rank, roles.ranks, roles.role_of, end.abort, lambda words: note_death(status, words)
        )
        stack.callback(liveness.stop)  # after an error; otherwise it stops when all ranks agree to leave
        liveness.watch_notes(config.stall_timeout_s, RunDirectory(output).logs, of={SCHEDULER_RANK})
        stack.enter_context(
            liveness.traced(RunDirectory(output).rank_log(world.rank), config.stall_timeout_s)
        )
        timeline = config.timeline
        rank = LiveRank(
            config=config,
            output=output,
            roles=roles,
            channel=MpiChannel(world.Dup()),
            stop=stop,
            liveness=liveness,
            slices=SliceRecorder(
                timeline.steps_per_pass, num_ranks=world.size, enabled=timeline.max_bytes > 0
            ),
        )
        data = None
        if isinstance(config, ParamServerConfig | JobsConfig):
            files = None if isinstance(opened, OpenedRun) else opened
            is_profile = request.num_operation_steps is not None
            code = start.leave_exit_code(
                world.rank, run_jobs(world, rank, config, files, is_profile=is_profile)
            )
        else:
            run = opened if isinstance(opened, OpenedRun) else None
            data = _open_data(world, node_comm, config, roles)
            context = RankContext.of(rank, config)
            code = start.leave_exit_code(world.rank, _play_role(world, context, data, run))
        stop.ignore()
        liveness.wait()
        patient_barrier(world)
        liveness.stop()
        if data is not None:
            data.ring.close()
    return code


def _open(request: RunRequest) -> OpenedRun | Opened:
    """Open the run on rank 0, of whatever kind it is."""
    config = load_requested(request, is_rank=True)
    if isinstance(config, ParamServerConfig | JobsConfig):
        return open_run_of_jobs(request, config)
    return open_run(request, config)


def _open_data(
    world: MPI.Intracomm, node_comm: MPI.Intracomm, config: EnsembleConfig, roles: Roles
) -> RankData:
    recipe = RECIPES[roles.role_of(world.rank)]
    return open_data(world, node_comm, config, roles, meanwhile=lambda: recipe.load_libraries(config))


def _start_logs(world: MPI.Intracomm, output: Path, level_name: str, logs: ExitStack) -> None:
    """Open the log of this rank; collective. Rank 0 goes first: it removes the logs of an earlier start."""
    level = logging.getLevelNamesMapping()[level_name]

    def open_log() -> None:
        logs.enter_context(configure_rank_logging(output, world.rank, socket.gethostname(), level))

    for is_my_turn in (world.rank == SCHEDULER_RANK, world.rank != SCHEDULER_RANK):
        all_or_none(world, open_log if is_my_turn else lambda: None)


def _discover(world: MPI.Intracomm, node_comm: MPI.Comm, config: AnyConfig) -> Roles:
    if not isinstance(config, EnsembleConfig):
        return discover_executors(world, node_comm)
    slots = config.slots.per_node
    return discover(
        world,
        node_comm,
        slots if isinstance(slots, int) else None,
        config.slots.preprocessors_per_node,
        config.slots.device,
    )


def _play_role(world: MPI.Intracomm, context: RankContext, data: RankData, opened: OpenedRun | None) -> int:
    """Set up this rank's role in step with all other ranks, and run it; returns the exit code."""
    ranks_by_role, name = context.roles.ranks_by_role, context.roles.role_of(context.rank)
    color, key = list(RECIPES).index(name), ranks_by_role[name].index(context.rank)
    peers = cast(MPI.Intracomm, world.Split(color, key))
    unfinished = patient_broadcast(world, opened.unfinished if opened is not None else None)
    setting = Setting(context, data, peers, world.Dup(), unfinished, opened)
    recipe = RECIPES[name](setting)
    devices = patient_allgather(world, all_or_none(world, recipe.prepare))
    all_or_none(world, recipe.check)
    all_or_none(world, lambda: recipe.build(devices))
    return recipe.play()
