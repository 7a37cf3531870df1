"""One rank of a job, from its first line to its exit code."""

from __future__ import annotations

import logging
import socket
import time
from contextlib import ExitStack, closing
from pathlib import Path
from typing import TypeVar, cast

from mpi4py import MPI

from hpcbal.cluster.discovery import discover, split_by_node
from hpcbal.cluster.launcher import Launcher
from hpcbal.cluster.roles import SCHEDULER_RANK, Roles
from hpcbal.comm.all_or_none import ReportedError, all_or_none
from hpcbal.comm.collectives import patient_allgather, patient_barrier, patient_broadcast
from hpcbal.comm.mpi_channel import MpiChannel
from hpcbal.config import EnsembleConfig, RunConfig, add_import_roots
from hpcbal.data.source import SampleSource
from hpcbal.dataplane.producer import NodeTopology, Producer
from hpcbal.errors import ExitCode
from hpcbal.runtime.handoff.launch_dir import leave_exit_code, leave_last_words, tell_ready, tell_watched
from hpcbal.runtime.handoff.run_request import RunRequest
from hpcbal.runtime.health.ending import JobEnd, write_last_words
from hpcbal.runtime.health.signals import StopFlag
from hpcbal.runtime.health.stalling import HangTrace
from hpcbal.runtime.health.watchdog import PeerWatchdog
from hpcbal.runtime.rank.context import RankContext
from hpcbal.runtime.rank.shared_data import make_ring, open_data
from hpcbal.runtime.record.final_report import write_final_report
from hpcbal.runtime.resuming.opening import OpenedRun, open_run
from hpcbal.runtime.roles.preprocessor import Preprocessor
from hpcbal.runtime.roles.trainer import Trainer
from hpcbal.runtime.start import check_collective, make_backend, make_scheduler, open_groups
from hpcbal.telemetry import RunDirectory, configure_rank_logging
from hpcbal.telemetry.host.processes import process_is_gone
from hpcbal.telemetry.streams.slices import SliceRecorder

log = logging.getLogger(__name__)

T = TypeVar("T")

SPEAKER_GRACE_S = 1.0
"""How long the other ranks of a node leave the word to the lowest one, when a rank has died."""


def run_rank(request: RunRequest, launcher: Launcher, stop: StopFlag) -> int:
    """Be one rank; returns the exit code, the same on all ranks.

    An error that only this rank knows of ends the whole job: a rank that only left would keep the others
    waiting.

    Args:
        request: what the command line asked for.
        launcher: that started this process.
        stop: catches signals already.
    """
    world = MPI.COMM_WORLD
    end = JobEnd(world)
    logging.raiseExceptions = False  # a full disk must not fill stderr with tracebacks of the logs
    with ExitStack() as logs:
        try:
            code = _run(world, request, launcher, stop, end, logs)
        except ReportedError as error:
            code = leave_exit_code(world.rank, error.code)
        except BaseException as error:
            end.abort_for(error)
            raise
    patient_barrier(world)
    end.close()
    MPI.Finalize()
    return code


def _run(
    world: MPI.Intracomm,
    request: RunRequest,
    launcher: Launcher,
    stop: StopFlag,
    end: JobEnd,
    logs: ExitStack,
) -> int:
    _check_world(world, launcher)
    patient_barrier(world)
    tell_ready(world.rank)  # all ranks catch signals by now
    with ExitStack() as stack:
        opened = all_or_none(world, lambda: open_run(request) if world.rank == SCHEDULER_RANK else None)
        if opened is not None:
            stack.callback(opened.close)
        config, output = patient_broadcast(
            world, (opened.config, opened.output) if opened is not None else None
        )
        add_import_roots(request.config_path)
        _start_logs(world, output, request.log_level, logs)
        node_comm = split_by_node(world, config.slots.ranks_per_node)
        roles = all_or_none(world, lambda: _discover(world, node_comm, config))
        end.share(node_comm)
        watchdog = _watch_peers(world, roles, end)
        stack.callback(watchdog.stop)  # without an error only when all ranks have agreed to leave
        source, facts = open_data(world, config, roles)
        ring = all_or_none(world, lambda: make_ring(node_comm, facts.spec, roles, world.rank))
        context = RankContext(
            config=config,
            output=output,
            roles=roles,
            channel=MpiChannel(world.Dup()),
            stream_spec=facts.spec,
            num_classes=facts.num_classes,
            data_fingerprint=facts.fingerprint,
            ring=ring,
            stop=stop,
            is_ending=end.announced,
            slices=SliceRecorder(
                config.timeline.steps_per_pass,
                num_ranks=world.size,
                enabled=config.timeline.max_bytes > 0,
            ),
            hang_trace=stack.enter_context(closing(_hang_trace(output, world.rank, config))),
        )
        code = leave_exit_code(world.rank, _play_role(world, context, source, opened))
        stop.ignore()
        patient_barrier(world)
        watchdog.stop()
        ring.close()
    return code


def _hang_trace(output: Path, rank: int, config: RunConfig) -> HangTrace:
    return HangTrace(RunDirectory(output).rank_log(rank), config.stall_timeout_s)


def _check_world(world: MPI.Intracomm, launcher: Launcher) -> None:
    """Leave if the launcher started more ranks than MPI sees; its first rank speaks for all."""
    if launcher.size in (None, world.size):
        return
    if launcher.rank in (None, SCHEDULER_RANK):
        write_last_words(
            f"{launcher.name} started {launcher.size} processes, but this one sees an MPI world of "
            f"{world.size}: each believes to be alone. The MPI that mpi4py was built with is not the "
            "launcher's: start with the mpirun of that MPI, or with 'srun --mpi=pmix', or rebuild mpi4py "
            "against the site's MPI"
        )
    raise ReportedError(int(ExitCode.WRONG_INPUT))


def _start_logs(world: MPI.Intracomm, output: Path, level_name: str, logs: ExitStack) -> None:
    """Open the log of this rank; collective. Rank 0 comes first: it clears what an earlier start has left."""
    level = logging.getLevelNamesMapping()[level_name]

    def open_log() -> None:
        logs.enter_context(configure_rank_logging(output, world.rank, socket.gethostname(), level))

    for is_my_turn in (world.rank == SCHEDULER_RANK, world.rank != SCHEDULER_RANK):
        all_or_none(world, open_log if is_my_turn else lambda: None)


def _discover(world: MPI.Intracomm, node_comm: MPI.Comm, config: EnsembleConfig) -> Roles:
    slots = config.slots.per_node
    return discover(
        world,
        node_comm,
        slots if isinstance(slots, int) else None,
        config.slots.preprocessors_per_node,
    )


def _watch_peers(world: MPI.Intracomm, roles: Roles, end: JobEnd) -> PeerWatchdog:
    """Watch the other ranks of this node from now on.

    The lowest of those that live tells of a death. Where `hpcbal run` has started the ranks it leaves that to
    it: so a death is told once, also one that no rank has time to tell of.
    """
    me = roles.ranks[world.rank]
    peers = [info for info in roles.ranks if info.node == me.node and info.rank != me.rank]

    def role_of(rank: int) -> str:
        if rank == SCHEDULER_RANK:
            return "scheduler"
        return "trainer" if rank in roles.trainer_ranks else "preprocessor"

    def end_job(message: str) -> None:
        lower = [peer for peer in peers if peer.rank < me.rank and not process_is_gone(peer.pid)]
        if end.announced() or lower:
            time.sleep(SPEAKER_GRACE_S)  # another one tells why; abort all the same if it cannot
        elif not leave_last_words(message):
            write_last_words(message)
        end.abort(int(ExitCode.INTERNAL_ERROR))

    watchdog = PeerWatchdog(me, peers, role_of, end_job)
    watchdog.start()
    tell_watched(world.rank)
    return watchdog


def _play_role(
    world: MPI.Intracomm, context: RankContext, source: SampleSource | None, opened: OpenedRun | None
) -> int:
    roles = context.roles
    is_trainer = context.rank in roles.trainer_ranks
    data_comm = world.Dup()
    key = roles.trainer_ranks.index(context.rank) if is_trainer else 0
    trainers = cast(MPI.Intracomm, world.Split(color=0 if is_trainer else MPI.UNDEFINED, key=key))
    backend = all_or_none(world, lambda: make_backend(context, trainers) if is_trainer else None)
    all_or_none(world, lambda: check_collective(context.config) if is_trainer else None)
    groups = open_groups(context.config, trainers) if is_trainer else None
    devices = patient_allgather(world, backend.device if backend is not None else None)
    try:
        scheduler = all_or_none(world, lambda: make_scheduler(context, opened, devices) if opened else None)
    except ReportedError:
        if groups is not None:  # a library that is not ended would go on talking after MPI's end
            groups.shutdown()
        raise
    if scheduler is not None:
        code = scheduler.run()
        write_final_report(RunDirectory(context.output))
        return code
    if context.rank in roles.preprocessor_ranks:
        assert source is not None
        topology = NodeTopology(roles.node_of_rank, roles.gateway_of_node)
        producer = Producer(context.ring, data_comm, topology, source, roles.local_producer(context.rank))
        return Preprocessor(context, producer).run()
    assert backend is not None
    assert groups is not None
    try:
        return Trainer(context, trainers, backend, groups, source).run()
    finally:
        backend.close()
