"""A job on parameter servers: a master that performs what the machine decides, executors in threads."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from loopback import LoopbackChannel
from numpy.typing import NDArray

from hpcbal.comm.channel import Channel
from hpcbal.paramserver.api.app import App
from hpcbal.paramserver.api.batch import DataBlocks
from hpcbal.paramserver.api.columns import IntArray
from hpcbal.paramserver.api.update import Table as AppTable
from hpcbal.paramserver.engine.executor import Executor
from hpcbal.paramserver.engine.loopback_transport import LoopbackTransport
from hpcbal.paramserver.engine.reactor import wait_for_message
from hpcbal.paramserver.engine.wire import Tracer
from hpcbal.paramserver.master import messages
from hpcbal.paramserver.master.bounded_staleness import BoundedStaleness
from hpcbal.paramserver.master.events import (
    BlockMove,
    ComputeMetrics,
    End,
    Event,
    ExecutorsReady,
    Heard,
    ManifestWritten,
    MetricsComputed,
    Reconfigure,
    Reconfigured,
    Send,
    WriteManifest,
)
from hpcbal.paramserver.master.job import JobMachine, JobSpec
from hpcbal.paramserver.master.stopping import JobStop
from hpcbal.paramserver.store.layout import Layout
from hpcbal.paramserver.worker.loading import EmulatedMachine, JobSetup

TIMEOUT_S = 60.0

AfterReport = Callable[["Master", messages.Report], Iterable[Event]]


class SavedBlocks:
    """Checkpoints of all executors, in memory."""

    def __init__(self) -> None:
        self.blocks: dict[tuple[int, str, int], dict[str, NDArray[Any]]] = {}

    def save(self, number: int, blocks: Mapping[Any, Mapping[int, Mapping[str, NDArray[Any]]]]) -> None:
        for what, owned in blocks.items():
            for block, arrays in owned.items():
                assert (number, what, block) not in self.blocks, f"{what} block {block} is saved twice"
                self.blocks[number, what, block] = {name: array.copy() for name, array in arrays.items()}

    def load(self, number: int, what: Any, blocks: Iterable[int]) -> dict[int, dict[str, NDArray[Any]]]:
        return {
            block: {name: array.copy() for name, array in self.blocks[number, what, block].items()}
            for block in blocks
        }

    def tables(self, layout: Layout, number: int) -> dict[str, NDArray[Any]]:
        """All tables of a checkpoint, whole."""
        tables = {t.name: np.full((t.num_rows, t.num_columns), -1, t.dtype) for t in layout.tables}
        for block in range(layout.num_blocks):
            values = self.blocks[number, "parameters", block]["values"]
            tables[layout.table_of(block).name][layout.rows_of(block)] = values
        return tables


class Master:
    """Rank 0: turns reports into events of the machine, and its instructions into orders."""

    def __init__(self, channel: Channel, machine: JobMachine, app: App, after: AfterReport | None) -> None:
        self.channel, self.machine, self.app, self.after = channel, machine, app, after
        self.end: End | None = None
        self.manifest: WriteManifest | None = None
        self.reconfigured: list[Reconfigure] = []
        self.turns: list[tuple[int, messages.TurnDone]] = []

    def run(self, check: Callable[[], None] = lambda: None) -> None:
        self.perform(ExecutorsReady())
        while self.end is None:
            rank, report = wait_for_message(self.channel, check)
            if isinstance(report, messages.TurnDone):
                self.turns.append((rank, report))
            self.perform(Heard(rank, report))
            for event in self.after(self, report) if self.after else ():
                self.perform(event)
        code = 0 if self.end.outcome == "done" else 1
        self.channel.send_to_all(self.machine.spec.executors, messages.EndStart(code))
        self.channel.flush()

    def perform(self, event: Event) -> None:
        for instruction in self.machine.handle(event):
            match instruction:
                case Send(order, to):
                    self.channel.send_to_all(to, order)
                case ComputeMetrics(epoch, sums):
                    self.perform(MetricsComputed(epoch, self.app.metrics(sums), 1.0))
                case WriteManifest():
                    self.manifest = instruction
                    self.perform(ManifestWritten(instruction.number))
                case Reconfigured(request):
                    self.reconfigured.append(request)
                case End():
                    self.end = instruction


def layout_of(app: App, num_blocks: int) -> Layout:
    """Every table in `num_blocks` parameter blocks, or as many as it has rows."""
    tables = app.tables()
    return Layout(tables, [min(num_blocks, table.num_rows) for table in tables])


def parameter_blocks(layout: Layout) -> Callable[[AppTable], Sequence[IntArray]]:
    """How `Alone` cuts tables as `layout` does."""
    return lambda table: [np.sort(layout.rows_of(block)) for block in layout.blocks_of(table.name)]


@dataclass(frozen=True)
class Setup:
    """A job and its executors; ranks count from 1.

    Attributes:
        staleness: of the workers; None: `async`.
        traces: record what executors do, by rank.
        after: called with each report; returns events for the machine.
        resume: the checkpoint to go on from.
    """

    make_app: Callable[[], App]
    workers: Sequence[int]
    servers: Sequence[int]
    mini_batch: int
    epochs: int
    num_executors: int | None = None
    staleness: int | None = 0
    seed: int = 3
    num_data_blocks: int = 6
    num_parameter_blocks: int = 5
    memory_bytes: int | None = None
    machines: Mapping[int, EmulatedMachine] = field(default_factory=dict)
    traces: Mapping[int, Tracer] = field(default_factory=dict)
    after: AfterReport | None = None
    resume: WriteManifest | None = None

    @property
    def executors(self) -> tuple[int, ...]:
        return tuple(range(1, 1 + (self.num_executors or max(*self.workers, *self.servers))))

    def job(self) -> JobSetup:
        """Of one rank, with an app of its own."""
        app = self.make_app()
        cut = DataBlocks(app.source.num_samples, self.num_data_blocks)
        layout = layout_of(app, self.num_parameter_blocks)
        return JobSetup(app, self.seed, self.mini_batch, cut, layout, self.staleness, self.memory_bytes)

    def master(self, channel: Channel) -> Master:
        job = self.job()
        pace = BoundedStaleness(1 if self.staleness is None else job.steps, self.staleness, self.epochs)
        data_owner = [self.workers[block % len(self.workers)] for block in range(self.num_data_blocks)]
        parameter_owner = [self.servers[b % len(self.servers)] for b in range(job.layout.num_blocks)]
        number, history = (self.resume.number, self.resume.history) if self.resume else (None, ())
        machine = JobMachine(
            JobSpec(self.executors, pace, JobStop(self.epochs)), data_owner, parameter_owner, number, history
        )
        return Master(channel, machine, job.app, self.after)


def run_job(setup: Setup, saved: SavedBlocks | None = None) -> tuple[Master, SavedBlocks]:
    """Train over loopback.

    Args:
        saved: with the checkpoint that `setup` resumes from.
    """
    transports = LoopbackTransport.connect(1 + len(setup.executors))
    channels = LoopbackChannel.connect(1 + len(setup.executors))
    saved = saved or SavedBlocks()

    def execute(rank: int) -> int:
        machine = setup.machines.get(rank)
        trace = setup.traces.get(rank)
        executor = Executor(transports[rank], channels[rank], setup.job(), machine, saved, trace)
        code = executor.run()
        if code == 0:
            executor.close()
            assert executor.buffers.used_bytes == executor.buffers.kept_bytes == 0
        return code

    master = setup.master(channels[0])
    with ThreadPoolExecutor(len(setup.executors)) as threads:
        futures = [threads.submit(execute, rank) for rank in setup.executors]

        def check() -> None:
            for future in futures:
                if future.done():
                    future.result()
                    raise AssertionError("an executor ended before the job")

        try:
            master.run(check)
        except BaseException:
            channels[0].send_to_all(setup.executors, messages.EndStart(1))
            raise
        codes = [future.result(TIMEOUT_S) for future in futures]
    assert set(codes) == {0 if master.end and master.end.outcome == "done" else 1}
    return master, saved


class Rotation:
    """Moves a block of each sort to the next executor after every `every` reports."""

    def __init__(self, every: int, num_executors: int, limit: int = 1000) -> None:
        self._every, self._num_executors, self._left = every, num_executors, limit
        self._count = 0

    def __call__(self, master: Master, report: messages.Report) -> list[Event]:
        self._count += isinstance(report, messages.TurnDone)
        if not isinstance(report, messages.TurnDone) or self._count % self._every or not self._left:
            return []
        if master.machine.is_reconfiguring or master.machine.phase != "running":
            return []
        self._left -= 1
        moves = []
        for what in ("data", "parameters"):
            owners = master.machine.owners(what)
            block = self._count // self._every % len(owners)
            source = owners[block]
            moves.append(BlockMove(what, (block,), source, 1 + source % self._num_executors))
        return [Reconfigure(tuple(moves), "test")]
