"""One rank of a job, from its first line to its exit code."""

from __future__ import annotations

import logging
import socket
from contextlib import ExitStack
from pathlib import Path

from mpi4py import MPI

from hpcbal.cluster.discovery import split_by_node
from hpcbal.cluster.roles import SCHEDULER_RANK
from hpcbal.cluster.started import Launcher
from hpcbal.comm.collectives import all_or_none, patient_barrier, patient_broadcast
from hpcbal.comm.mpi import MpiChannel
from hpcbal.config import add_import_roots
from hpcbal.kinds import KINDS
from hpcbal.runtime.handoff.launch_dir import RunRequest, load_requested
from hpcbal.runtime.handoff.start_file import StartFile
from hpcbal.runtime.health.ending import JobEnder, StopFlag
from hpcbal.runtime.health.liveness import Liveness
from hpcbal.runtime.job import run_in_job
from hpcbal.runtime.kinds.kind import Opened, RankWorld
from hpcbal.runtime.preflight import preflight
from hpcbal.runtime.rank.context import LiveRank
from hpcbal.runtime.rank.output import kept_output
from hpcbal.telemetry.files.run_directory import RunDirectory
from hpcbal.telemetry.streams.rank_log import configure_rank_logging
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
    end: JobEnder,
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
        kind = KINDS[config.kind].runs
        ranks = RankWorld(world, split_by_node(world, config.slots.ranks_per_node))
        roles = all_or_none(world, lambda: kind.roles(ranks, config))
        all_or_none(world, lambda: end.share(ranks.node))
        status = RunDirectory(output).status
        liveness.watch(
            world.rank, roles.ranks, roles.role_of, end.abort, lambda words: note_death(status, words)
        )
        stack.callback(liveness.stop)  # after an error; otherwise it stops when all ranks agree to leave
        liveness.watch_notes(config.stall_timeout_s, RunDirectory(output).logs, of={SCHEDULER_RANK})
        stack.enter_context(
            liveness.traced(RunDirectory(output).rank_log(world.rank), config.stall_timeout_s)
        )
        if config.preflight:
            preflight(world, ranks.node, output, liveness.note)
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
        last = ExitStack()  # not unwound after an error, because that may wait for the other ranks
        code = start.leave_exit_code(world.rank, kind.play(ranks, rank, request, opened, last))
        stop.ignore()
        liveness.wait()
        patient_barrier(world)
        liveness.stop()
        last.close()
    return code


def _open(request: RunRequest) -> Opened:
    """Open the run on rank 0, of whatever kind it is."""
    config = load_requested(request, is_rank=True)
    return KINDS[config.kind].runs.open(request, config)


def _start_logs(world: MPI.Intracomm, output: Path, level_name: str, logs: ExitStack) -> None:
    """Open the log of this rank; collective. Rank 0 goes first: it removes the logs of an earlier start."""
    level = logging.getLevelNamesMapping()[level_name]

    def open_log() -> None:
        logs.enter_context(configure_rank_logging(output, world.rank, socket.gethostname(), level))
        logs.enter_context(kept_output(RunDirectory(output).rank_output(world.rank), world.rank))

    for is_my_turn in (world.rank == SCHEDULER_RANK, world.rank != SCHEDULER_RANK):
        all_or_none(world, open_log if is_my_turn else lambda: None)
