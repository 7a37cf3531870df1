"""Play a rank's role in a parameter-server job."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from hpcbal.cluster.roles import SCHEDULER_RANK
from hpcbal.comm.collectives import all_or_none, patient_broadcast
from hpcbal.config import ParamServerConfig
from hpcbal.paramserver.contract import DataBlocks
from hpcbal.paramserver.engine.executor import Executor
from hpcbal.paramserver.engine.mpi_transport import MpiTransport
from hpcbal.paramserver.engine.trace import Trace
from hpcbal.paramserver.machine.job import JobMachine, JobSpec
from hpcbal.paramserver.machine.messages import What
from hpcbal.paramserver.machine.progress import Pace
from hpcbal.paramserver.store.layout import Layout
from hpcbal.paramserver.worker.job import EmulatedMachine, Job
from hpcbal.runtime.paramserver.checkpoint import (
    DATA,
    PARAMETERS,
    Arrays,
    SavedJob,
    read_blocks,
    write_blocks,
)
from hpcbal.runtime.paramserver.cutting import Cut, check_saved, first_cut
from hpcbal.runtime.paramserver.loading import LoadedJob, load_job
from hpcbal.runtime.paramserver.master import Master
from hpcbal.runtime.paramserver.opening import JOBS, OpenedJob, stop_rule
from hpcbal.runtime.paramserver.outlook import forecast_of
from hpcbal.runtime.paramserver.owners import first_owners, without_blocks
from hpcbal.runtime.paramserver.record import JobRecord
from hpcbal.runtime.paramserver.sampling import sample_job
from hpcbal.runtime.paramserver.supply import ExecutorSupply
from hpcbal.runtime.paramserver.tracing import SliceTrace
from hpcbal.runtime.paramserver.tuning import Tuner
from hpcbal.runtime.rank.context import LiveRank
from hpcbal.runtime.record.final_report import write_final_report
from hpcbal.runtime.wire.protocol import TimelinePart
from hpcbal.telemetry import RunDirectory

if TYPE_CHECKING:
    from mpi4py import MPI

IN_TOUCH_INTERVAL_S = 0.2
"""Between looks at signals and at the time of the last heartbeat."""


def play_job(
    world: MPI.Intracomm, rank: LiveRank, config: ParamServerConfig, opened: OpenedJob | None
) -> int:
    """Play the role of this rank; collective. Returns the exit code, the same on all ranks.

    Args:
        world: communicator of all ranks.
        rank: this rank.
        config: the configuration.
        opened: the run's files, on rank 0 only.
    """
    loaded = all_or_none(world, lambda: load_job(config))
    executors = rank.roles.executor_ranks
    is_master = world.rank == SCHEDULER_RANK
    cut = all_or_none(world, lambda: _cut(config, loaded, opened, len(executors)) if is_master else None)
    cut, saved = patient_broadcast(
        world, (cut, None if opened is None else opened.saved) if is_master else None
    )
    frames = world.Dup()
    if is_master:
        assert opened is not None
        code = all_or_none(world, lambda: make_master(rank, config, loaded, cut, opened)).run()
        frames.Free()
        write_final_report(RunDirectory(rank.output, JOBS))
        return code
    trace = SliceTrace(rank.slices, config.name)
    executor = all_or_none(world, lambda: make_executor(frames, rank, config, loaded, cut, saved, trace))
    executor.reactor.add(trace.poll_of(executor))
    code = executor.run()
    trace.end()
    rank.send_slices()
    rank.channel.send(SCHEDULER_RANK, TimelinePart(()))  # the master waits for this end
    rank.channel.flush()
    executor.close()
    return code


def _cut(config: ParamServerConfig, loaded: LoadedJob, opened: OpenedJob | None, executors: int) -> Cut:
    assert opened is not None
    if opened.saved is None:
        return first_cut(config, loaded, executors)
    check_saved(opened.saved, loaded.fingerprint(config.seed), opened.run.job(config.name))
    return Cut.of_saved(opened.saved)


def make_master(
    rank: LiveRank, config: ParamServerConfig, loaded: LoadedJob, cut: Cut, opened: OpenedJob
) -> Master:
    """The master of a job, ready to run.

    Raises:
        InputError: if the file asks for more workers and servers than there are executors.
    """
    executors = rank.roles.executor_ranks
    saved = opened.saved
    history = () if saved is None else saved.history
    supply = ExecutorSupply(config, executors, opened.run.executors)
    in_use = supply.in_use(history[-1].epoch if history else 0)
    data_owner, parameter_owner = first_owners(config, cut, in_use, saved)
    blocks = DataBlocks(loaded.num_samples, cut.data)
    is_async = config.staleness is None
    steps = 1 if is_async else -(-blocks.num_samples // config.mini_batch)
    pace = Pace(steps, config.staleness, config.stop.max_epochs, config.objective.every)
    machine = JobMachine(
        JobSpec(executors, pace, stop_rule(config)),
        data_owner,
        parameter_owner,
        None if saved is None else saved.number,
        history,
    )
    opened.claim.record()
    record = JobRecord(opened, rank.roles, in_use)
    for note in (*opened.notes, *without_blocks(config, data_owner, parameter_owner)):
        record.note(note)
    record.note_start(machine, loaded.num_samples, loaded.parameter_bytes, None if is_async else steps)
    if (found := forecast_of(config, machine)) is not None:
        record.note_forecast(found)
    return Master(
        rank,
        machine,
        loaded.app,
        record,
        opened.run,
        loaded.fingerprint(config.seed),
        cut,
        Tuner(
            config,
            machine,
            loaded.num_samples,
            loaded.parameter_bytes,
            loaded.data_bytes(blocks.samples(0)),
            in_use,
            loaded.dense_bytes,
            sample_job(loaded, config.seed).row_growth,
        ),
        supply,
        in_use,
        started_s=opened.request.started_s,
    )


@dataclass(frozen=True, slots=True)
class CheckpointFiles:
    """Where an executor saves and loads blocks: the files of the run.

    Attributes:
        job: directory of the job.
        rank: of the executor.
        saved: the checkpoint from which the job goes on; None: it starts.
    """

    job: Path
    rank: int
    saved: SavedJob | None

    def save(self, number: int, blocks: Mapping[What, Mapping[int, Arrays]]) -> None:
        """Write this executor's part of checkpoint `number`."""
        write_blocks(self.job, number, self.rank, {PARAMETERS: blocks["parameters"], DATA: blocks["data"]})

    def load(self, number: int, what: What, blocks: Iterable[int]) -> Mapping[int, Arrays]:
        """Read blocks of checkpoint `number`, whoever saved them."""
        assert self.saved is not None
        assert self.saved.number == number
        return read_blocks(self.job, self.saved, what, blocks)


def make_executor(
    frames: MPI.Intracomm,
    rank: LiveRank,
    config: ParamServerConfig,
    loaded: LoadedJob,
    cut: Cut,
    saved: SavedJob | None,
    trace: Trace,
) -> Executor:
    """The executor of this rank, ready to run.

    Args:
        frames: communicator of its own.
        rank: this rank.
        config, loaded, cut: the job.
        saved: the checkpoint from which it goes on; None: it starts.
        trace: records what the executor does.
    """
    job = Job(
        loaded.app,
        config.seed,
        config.mini_batch,
        DataBlocks(loaded.num_samples, cut.data),
        Layout(tuple(loaded.tables.values()), cut.parameters),
        staleness=config.staleness,
        memory_bytes=config.memory_per_rank,
    )
    emulated = config.machine_of(rank.roles.executor_ranks.index(rank.rank))
    machine = None
    if emulated is not None:
        machine = EmulatedMachine(emulated.seconds_per_sample, emulated.speed, emulated.bandwidth)
    files = CheckpointFiles(RunDirectory(rank.output, JOBS).job(config.name), rank.rank, saved)
    executor = Executor(MpiTransport(frames), rank.channel, job, machine, files, trace)
    executor.reactor.add(_keep_in_touch(rank))
    return executor


def _keep_in_touch(rank: LiveRank) -> Callable[[float], bool]:
    """A poll that reports signals and sends heartbeats."""
    due_s = 0.0

    def poll(now_s: float) -> bool:
        nonlocal due_s
        if now_s >= due_s:
            due_s = now_s + IN_TOUCH_INTERVAL_S
            rank.keep_in_touch("serving and computing")
        return False

    return poll
