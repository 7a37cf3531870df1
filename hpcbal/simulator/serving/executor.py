"""An executor in virtual time: obeys the master's orders and takes turns, as that of the engine does."""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from functools import partial

import numpy as np

from hpcbal.comm.message import Message
from hpcbal.errors import HpcbalError
from hpcbal.paramserver.contract import DataBlock, IntArray
from hpcbal.paramserver.engine.wire import ENTRY_BYTES, HEADER_BYTES
from hpcbal.paramserver.machine import messages
from hpcbal.paramserver.machine.messages import Report
from hpcbal.paramserver.store.moving import queue_of_link
from hpcbal.paramserver.worker.samples import MAX_OPEN_TURNS, Cursor, OpenTurns, Turn, WorkerSamples
from hpcbal.simulator.serving.client import ParameterClient
from hpcbal.simulator.serving.clock import Clock
from hpcbal.simulator.serving.job import Delays, ServingJob, ServingMachine
from hpcbal.simulator.serving.network import Network
from hpcbal.simulator.serving.place import Alone, Place, TimedWaits, Waits
from hpcbal.simulator.serving.server import Server
from hpcbal.simulator.serving.units import Units

OBJECTIVE = "objective"
"""The only term of the objective of a simulated job; it is always 0."""


class Executor:
    """One rank of a job. It serves others whatever it waits for, and while it computes.

    Args:
        rank: this rank.
        job: what is simulated.
        machine: how fast this executor is.
        delays: of turns.
        clock, network, units: of the simulation.
        executors: all of them; filled later.
        report: sends a report to the master.
        place: makes the place where it runs, given a function that lets it look whether it may go on; None:
            it has the rank for itself.
        saved: by data block, how far it was when the checkpoint was written from which the job may go on.
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
        clients: Mapping[int, ParameterClient],
        servers: Mapping[int, Server],
        executors: Mapping[int, Executor],
        report: Callable[[Report], None],
        place: Callable[[Callable[[], None]], Place] | None = None,
        saved: Mapping[int, Cursor] | None = None,
    ) -> None:
        self._rank, self._job, self._machine, self._delays = rank, job, machine, delays
        self._place = Alone(clock, self._look) if place is None else place(self._look)
        self._saved = saved or {}
        self._clock, self._network, self._report = clock, network, report
        self._executors = executors
        self.client = ParameterClient(rank, clock, network, units, servers, self._look)
        self.server = Server(
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
            self._look,
            has_barrier=job.staleness == 0,
        )
        steps = None if job.is_async else job.steps
        self.samples = WorkerSamples(job.cut, job.seed, steps, job.mini_batch, _natural_order)
        self._rng = random.Random(f"{job.seed} {rank}")
        self._orders: deque[Message] = deque()
        self._limit = self._evaluating = 0
        self._open_turns = OpenTurns(report)
        self._must_evaluate = False
        self._is_paused = True
        self._next: Turn | None = None
        self._moving = queue_of_link(machine.bandwidth, cuts=True)
        self._copied: dict[int, int] = {}  # data block -> destination
        self._leaving: dict[int, int] = {}  # data blocks that are given up, and not yet there
        self._steps = self._work()
        self._awaited = next(self._steps)

    def _look(self) -> None:
        """Something has happened: go on if it was awaited."""
        while self._awaited():
            self._awaited = next(self._steps)

    # The loop.

    def _work(self) -> Waits:
        while True:
            if self._orders:
                yield from self._obey(self._orders.popleft())
            elif self._may_give():
                self._give_copied()
            elif self._must_evaluate:
                yield from self._evaluate()
            elif self._may_take_turn():
                assert self._next is not None
                yield from self._take(self._next)
            else:
                yield self._has_work

    def _has_work(self) -> bool:
        return bool(self._orders) or self._may_give() or self._must_evaluate or self._may_take_turn()

    def _may_take_turn(self) -> bool:
        self._next = None
        if not self._is_paused and len(self._open_turns) < MAX_OPEN_TURNS:
            self._next = self.samples.next_turn(self.samples.limit_within(self._limit))
        return self._next is not None

    # Turns.

    def _take(self, turn: Turn) -> Waits:
        job, clock, client = self._job, self._clock, self.client
        step = turn.epoch if job.is_async else turn.epoch * job.steps + turn.step
        done = self._open_turns.begin()
        if not turn.num_samples:
            done(messages.TurnDone(step, turn.blocks, 0, 0.0, 0.0, 0.0, 0))
            self.samples.finish(turn)
            return
        bytes_before = client.num_bytes
        pull_s = yield from self._pull(turn.num_samples, step)
        num_bytes = client.num_bytes - bytes_before
        compute_s = yield from self._place.computing(self._compute_s(turn.num_samples))
        yield from self._place.communicating(step)
        push_start_s = clock.now_s

        def applied() -> None:
            report = messages.TurnDone(
                step,
                turn.blocks,
                turn.num_samples,
                compute_s,
                pull_s,
                clock.now_s - push_start_s,
                num_bytes,
            )
            done(report)

        bytes_before = client.num_bytes
        client.push(turn.num_samples, applied)
        num_bytes += client.num_bytes - bytes_before
        if self._place.waits_for_pushes:
            yield lambda: not client.num_unapplied
        self._place.communicated()
        self.samples.finish(turn)

    def _pull(self, num_samples: int, step: int | None, *, keeps_dense: bool = False) -> TimedWaits:
        """Pull what so many samples need; returns the seconds from its begin to its end."""
        client = self.client
        yield from self._place.communicating(step)
        start_s = self._clock.now_s
        client.pull(num_samples, keeps_dense=keeps_dense)
        yield lambda: not client.num_pulls
        yield lambda: not client.num_unsent
        self._place.communicated()
        return self._clock.now_s - start_s

    def _compute_s(self, num_samples: int) -> float:
        seconds = num_samples * self._machine.seconds_per_sample + self._delays.turn_s
        noise = self._job.compute_noise
        return seconds * (1.0 + self._rng.uniform(-noise, noise)) if noise else seconds

    def _evaluate(self) -> Waits:
        """Pull what the objective of own data blocks needs, dense tables once, rows once for several blocks.

        Computing it takes no time, but each block waits until the cores are free.
        """
        self._must_evaluate = False
        start_s, epoch = self._clock.now_s, self._evaluating
        data: dict[int, dict[str, float]] = {}
        missing = self.samples.take_unevaluated(epoch)
        for numbers in self._job.evaluated_together(missing, len(self.samples.cursors)):
            num_samples = sum(map(self._job.cut.size, numbers))
            yield from self._pull(num_samples, None, keeps_dense=bool(data))
            for number in numbers:
                yield from self._place.computing(0.0)
                data[number] = {OBJECTIVE: 0.0}
        parameters: dict[int, dict[str, float]] = {}
        for number in self.server.take_unevaluated(epoch):
            yield from self._place.computing(0.0)
            parameters[number] = {}
        if data or parameters:
            self._report(messages.Evaluated(epoch, data, parameters, self._clock.now_s - start_s))

    # Orders.

    def hear(self, message: Message) -> None:
        """A message of the master has come."""
        match message:
            case messages.MayStart(limit):
                self._limit = limit
            case messages.Evaluate(epoch):
                self._evaluating, self._must_evaluate = epoch, True
            case messages.OwnerChanged(blocks, owner):
                self.client.ownership.change(blocks, owner)
            case messages.MoveBlocks("parameters", blocks, destination):
                self.server.move(blocks, destination)
            case messages.MoveBlocks("data", blocks, destination):
                for number in blocks:
                    self._moving.add(number, destination, self._bytes_of(number))
                self._send_pieces()
            case _:
                self._orders.append(message)
        self._look()

    def _obey(self, order: Message) -> Waits:
        match order:
            case messages.Assign():
                yield from self._place.loading()
                self.server.begin()
                for number, owner in enumerate(order.data_owner):
                    if owner == self._rank:
                        block = DataBlock(number, self._job.cut.first(number), {}, {})
                        self.samples.add(block, Cursor() if order.saved is None else self._saved[number])
                self._is_paused = order.saved is None
                self._report(messages.Ready(self.samples.steps_ahead()))
            case messages.Initialise():
                for blocks in self._job.pushed_together(sorted(self.samples.cursors)):
                    yield from self._initialise(blocks)
                self._is_paused = False
                self._report(messages.Initialised())
            case messages.Pause():
                yield lambda: not self._open_turns
                self._moving.hold()
                self.server.moving.hold()
                yield lambda: not self._leaving and self._moving.is_quiet and self.server.moving.is_quiet
                self._is_paused = True
                self._report(messages.Paused(self.samples.steps_ahead()))
            case messages.Save(number):
                yield from self._place.saving()
                self._report(messages.Saved(number))
            case messages.Continue():
                self._is_paused = False
                self._moving.go_on()
                self._send_pieces()
                self.server.moving.go_on()
                self.server.give_next()
            case _:
                raise HpcbalError(f"a simulated executor got {order!r}, which it does not know")

    def _initialise(self, blocks: Sequence[int]) -> Waits:
        """Push what data blocks push together before the first epoch. Computing takes no time, but waits."""
        client = self.client
        for _ in blocks:
            yield from self._place.computing(0.0)
        if not self._job.first_push:
            return
        yield from self._place.communicating()
        client.push_first(blocks, _nothing)
        yield lambda: not client.num_unapplied
        self._place.communicated()

    # Data blocks that move.

    def _bytes_of(self, number: int) -> int:
        return max(1, round(self._job.cut.size(number) * self._job.sample_bytes))

    def _send_pieces(self) -> None:
        """Copy blocks, as far as links are free."""
        while (piece := self._moving.next_piece()) is not None:
            num_bytes, destination = piece.stop - piece.start, piece.destination
            acknowledged = partial(self._on_copied, piece.block, num_bytes)
            size = HEADER_BYTES + ENTRY_BYTES
            acknowledge = partial(self._network.send, destination, self._rank, size, acknowledged)
            self._network.send(self._rank, destination, size + num_bytes, acknowledge)

    def _on_copied(self, number: int, num_bytes: int) -> None:
        destination = self._moving.received(number, num_bytes)
        if destination is not None:
            self._copied[number] = destination
        self._send_pieces()
        self._look()

    def _may_give(self) -> bool:
        return bool(self._copied) and not self._moving.is_held

    def _give_copied(self) -> None:
        """Give up the blocks that have been copied; between two turns."""
        for number, destination in self._copied.items():
            block, cursor, _ = self.samples.remove(number)
            self._leaving[number] = destination
            self._open_turns.after(partial(self._give, number, block, cursor))
        self._copied = {}

    def _give(self, number: int, block: DataBlock, cursor: Cursor) -> None:
        destination = self._leaving[number]
        other = self._executors[destination]

        def arrived() -> None:
            other.samples.add(block, cursor)
            self._network.send(destination, self._rank, HEADER_BYTES + ENTRY_BYTES, taken)
            other._on_block()

        def taken() -> None:
            self._report(messages.BlocksMoved("data", (number,), self._leaving.pop(number)))
            self._look()

        self._network.send(self._rank, destination, HEADER_BYTES + ENTRY_BYTES, arrived)

    def _on_block(self) -> None:
        """A block has come: if an objective is being computed, it may be missing there."""
        self._must_evaluate = self._evaluating > 0
        self._look()


def _nothing() -> None:
    pass


def _natural_order(seed: int, epoch: int, block: int, size: int) -> IntArray:
    """Which samples a turn takes does not change how many they are."""
    return np.arange(size)
