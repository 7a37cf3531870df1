"""An executor in virtual time: drives the `Worker` of a real run, and lets time pass for what it does."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial

import numpy as np

from hpcbal.comm.channel import Message
from hpcbal.paramserver.api.batch import DataBlock
from hpcbal.paramserver.api.columns import IntArray
from hpcbal.paramserver.engine.wire import ENTRY_BYTES, HEADER_BYTES
from hpcbal.paramserver.master import messages
from hpcbal.paramserver.master.messages import Report
from hpcbal.paramserver.store.moving import Segment, queue_of_link
from hpcbal.paramserver.worker.data_moves import Carrier, DataMoves
from hpcbal.paramserver.worker.resources import Resources, Waits
from hpcbal.paramserver.worker.samples import Cursor, OpenTurns, Turn, WorkerSamples
from hpcbal.paramserver.worker.worker import Hands, Worker
from hpcbal.simulator.paramserver.client import VirtualClient, WorkerClient
from hpcbal.simulator.paramserver.clock import Clock, sleep
from hpcbal.simulator.paramserver.job import Delays, ServingJob, ServingMachine
from hpcbal.simulator.paramserver.network import Network
from hpcbal.simulator.paramserver.server import VirtualServer
from hpcbal.simulator.paramserver.units import TurnBytes, Units

OBJECTIVE = "objective"
"""The only term of the objective of a simulated job; it is always 0."""


class VirtualResources:
    """A rank that one executor has for itself.

    Args:
        clock: of the simulation.

    Attributes:
        subtasks: says when each subtask of a turn may start.
    """

    def __init__(self, clock: Clock) -> None:
        self.clock, self.subtasks = clock, Resources()

    def compute(self, seconds: float, look: Callable[[], None]) -> Waits[float]:
        """Compute; returns how long it takes.

        Args:
            seconds: that the cores need, if nobody else uses them.
            look: called when it may be over.
        """
        yield from sleep(self.clock, look, seconds)
        return seconds

    def load(self, look: Callable[[], None]) -> Waits[None]:
        """Make or load the executor's blocks; it takes no time."""
        yield from ()

    def save(self, look: Callable[[], None]) -> Waits[None]:
        """Write them; it takes no time."""
        yield from ()


class VirtualExecutor(Hands[int, None, TurnBytes, int], Carrier):
    """One rank of a job. It serves others whatever it waits for, and while it computes.

    Args:
        rank: this rank.
        job: what is simulated.
        machine: how fast this executor is.
        delays: of turns.
        clock, network, units: of the simulation.
        clients, servers, executors: of all ranks; this one adds its own.
        report: sends a report to the master.
        resources: where it runs; None: it has the rank for itself.
        saved: by data block, how far it was when the checkpoint was written from which the job may go on.
        client_of: makes what pulls and pushes, given what to call after each event; None: frames do.
    """

    def __init__(
        self,
        rank: int,
        job: ServingJob,
        machine: ServingMachine,
        delays: Delays,
        clock: Clock,
        network: Network,
        units: Units,
        clients: dict[int, VirtualClient],
        servers: dict[int, VirtualServer],
        executors: dict[int, VirtualExecutor],
        report: Callable[[Report], None],
        resources: VirtualResources | None = None,
        saved: Mapping[int, Cursor] | None = None,
        client_of: Callable[[Callable[[], None]], WorkerClient] | None = None,
    ) -> None:
        self._rank, self._job, self._machine, self._delays = rank, job, machine, delays
        self._resources = resources or VirtualResources(clock)
        self._saved = saved or {}
        self._clock, self._network, self._units, self._executors = clock, network, units, executors
        executors[rank] = self
        self.client: WorkerClient
        if client_of is None:
            self.client = clients[rank] = VirtualClient(rank, clock, network, units, servers, self.look)
        else:
            self.client = client_of(self.look)
        self.server = servers[rank] = VirtualServer(
            rank,
            clock,
            network,
            units,
            machine.service_s_per_byte,
            machine.bandwidth,
            clients,
            servers,
            report,
            self._on_block,
            self.look,
            has_barrier=job.staleness == 0,
        )
        steps = None if job.is_async else job.steps
        self.samples = WorkerSamples(job.cut, job.seed, steps, job.mini_batch, _natural_order)
        queue = queue_of_link(machine.bandwidth, cuts=True)

        def moves_of(open_turns: OpenTurns) -> DataMoves:
            self._moves = DataMoves(self.samples, open_turns, queue, self, report)
            return self._moves

        self._worker = Worker(steps, self.samples, self, self._resources.subtasks, report, moves_of)
        self._life = self._worker.life()
        self._awaited = next(self._life)

    def look(self) -> None:
        """Something has happened: go on if it was awaited."""
        while self._awaited():
            self._awaited = next(self._life)

    def hear(self, message: Message) -> None:
        """A message of the master has come."""
        self._worker.hear(message)
        self.look()

    def _on_block(self) -> None:
        self._worker.block_came()
        self.look()

    # See `Hands`.

    @property
    def now_s(self) -> float:
        return self._clock.now_s

    @property
    def worker_bytes(self) -> int:
        return self.client.num_bytes

    @property
    def num_unapplied(self) -> int:
        return self.client.num_unapplied

    @property
    def server_is_quiet(self) -> bool:
        return self.server.moving.is_quiet

    def load(self, order: messages.Assign) -> Waits[None]:
        yield from self._resources.load(self.look)
        self.server.begin()
        for number, owner in enumerate(order.data_owner):
            if owner == self._rank:
                block = DataBlock(number, self._job.cut.first(number), {}, {})
                self.samples.add(block, Cursor() if order.saved is None else self._saved[number])

    def save(self, number: int) -> Waits[None]:
        yield from self._resources.save(self.look)

    def change_owner(self, blocks: Sequence[int], owner: int) -> None:
        self.client.ownership.change(blocks, owner)

    def move_parameters(self, blocks: tuple[int, ...], destination: int) -> None:
        self.server.move(blocks, destination)

    def hold_parameters(self) -> None:
        self.server.moving.hold()

    def go_on(self) -> None:
        self.server.moving.go_on()
        self.server.give_next()

    def gather(self, turn: Turn) -> int:
        return turn.num_samples

    def pull(self, wanted: int, step: int, share: int, *, keeps_dense: bool = False) -> Waits[None]:
        self.client.pull(wanted, keeps_dense=keeps_dense)
        yield lambda: not self.client.num_pulls
        yield lambda: not self.client.num_unsent

    def compute(self, turn: Turn, wanted: int, values: None) -> Waits[tuple[TurnBytes, float]]:
        seconds = wanted * self._machine.seconds_per_sample + self._delays.turn_s
        spent_s = yield from self._resources.compute(seconds, self.look)
        return self._units.turn_bytes(wanted), spent_s

    def push(self, updates: TurnBytes, step: int, applied: Callable[[], None]) -> Waits[None]:
        yield from ()  # the last pull has waited until earlier ones have left
        self.client.push(updates, applied)

    def first_blocks(self) -> Iterator[Callable[[], TurnBytes | None]]:
        if self._job.first_push:
            for blocks in self._job.pushed_together(sorted(self.samples.cursors)):
                for number in blocks:
                    yield partial(self._first_updates, blocks, number)

    def _first_updates(self, blocks: Sequence[int], number: int) -> TurnBytes | None:
        return self._units.first_bytes(blocks) if number == blocks[-1] else None

    def first_updates_left(self) -> TurnBytes | None:
        return None

    def evaluated_together(self, numbers: Sequence[int], epoch: int) -> Iterator[tuple[int, Sequence[int]]]:
        for together in self._job.evaluated_together(numbers, len(self.samples.cursors)):
            yield sum(map(self._job.cut.size, together)), together

    def objective(self, block: int, values: None) -> tuple[int, Callable[[], Mapping[str, float]]]:
        return block, partial(dict, {OBJECTIVE: 0.0})

    def drop(self) -> None:
        pass

    def parameter_objectives(self, epoch: int) -> Iterator[tuple[int, Callable[[], Mapping[str, float]]]]:
        for number in self.server.take_unevaluated(epoch):
            yield number, dict

    # See `Carrier`.

    def begin(self, block: DataBlock) -> int:
        return max(1, round(self._job.cut.size(block.number) * self._job.sample_bytes))

    def send(self, piece: Segment) -> None:
        num_bytes, size = piece.stop - piece.start, HEADER_BYTES + ENTRY_BYTES

        def copied() -> None:
            self._moves.copied(piece.block, num_bytes)
            self.look()

        acknowledge = partial(self._network.send, piece.destination, self._rank, size, copied)
        self._network.send(self._rank, piece.destination, size + num_bytes, acknowledge)

    def give(self, block: DataBlock, cursor: Cursor, changed: IntArray, destination: int) -> None:
        other, size = self._executors[destination], HEADER_BYTES + ENTRY_BYTES

        def arrived() -> None:
            other.samples.add(block, cursor)
            self._network.send(destination, self._rank, size, taken)
            other._on_block()

        def taken() -> None:
            self._moves.taken(block.number)
            self.look()

        self._network.send(self._rank, destination, size, arrived)


def _natural_order(seed: int, epoch: int, block: int, size: int) -> IntArray:
    """Which samples a turn takes does not change how many they are."""
    return np.arange(size)
