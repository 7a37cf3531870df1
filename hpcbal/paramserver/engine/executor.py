"""An executor: serves the parameter blocks that it owns, and takes turns with its data blocks.

What it owns makes it a worker, a server, both or a spare. Whatever it waits for, it serves others meanwhile;
only the app's own code keeps them waiting.
"""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Mapping
from typing import Any, NoReturn

import numpy as np

from hpcbal.comm.channel import Channel
from hpcbal.comm.message import Message
from hpcbal.errors import HpcbalError, UserCodeError
from hpcbal.machines import MachineError
from hpcbal.paramserver.contract import AppError, checked_terms, held_bytes
from hpcbal.paramserver.engine.arena import allocate
from hpcbal.paramserver.engine.client import ParameterClient
from hpcbal.paramserver.engine.data_moves import DataMoves
from hpcbal.paramserver.engine.job import EmulatedMachine, Job
from hpcbal.paramserver.engine.load_reports import LoadReports
from hpcbal.paramserver.engine.loading import (
    VALUES,
    Arrays,
    Checkpoints,
    data_arrays,
    fill_first,
    fill_saved,
    first_data,
    saved_data,
)
from hpcbal.paramserver.engine.open_turns import MAX_OPEN_TURNS, OpenTurns
from hpcbal.paramserver.engine.parameter_moves import ParameterMoves
from hpcbal.paramserver.engine.place import Place
from hpcbal.paramserver.engine.samples import Cursor, Turn
from hpcbal.paramserver.engine.server import Server
from hpcbal.paramserver.engine.trace import Trace
from hpcbal.paramserver.engine.transport import Transport
from hpcbal.paramserver.engine.turns import Turns
from hpcbal.paramserver.engine.user_app import calling
from hpcbal.paramserver.engine.wire import Frame, Kind, Wire
from hpcbal.paramserver.machine import messages
from hpcbal.paramserver.machine.messages import What
from hpcbal.paramserver.store.moving import queue_of_link
from hpcbal.paramserver.store.ownership import Ownership

log = logging.getLogger(__name__)

MASTER = 0
"""The rank that the executor reports to."""


class _Finished(Exception):  # noqa: N818 - not an error
    """The master has ended the job, maybe amid a turn."""

    def __init__(self, exit_code: int) -> None:
        super().__init__(exit_code)
        self.exit_code = exit_code


class Executor:
    """One rank of a job, from `Assign` to `Finish`.

    Args:
        transport: to the other executors.
        channel: to and from the master.
        job: what to train.
        machine: how fast to be; None: as fast as the machine is.
        checkpoints: where to save and load blocks; None: the job is never saved.
        trace: records what the executor does; None: nothing is recorded.
        place: where it runs; None: it has the rank for itself, with a link as fast as that of `machine`.
    """

    def __init__(
        self,
        transport: Transport,
        channel: Channel,
        job: Job,
        machine: EmulatedMachine | None = None,
        checkpoints: Checkpoints | None = None,
        trace: Trace | None = None,
        place: Place | None = None,
    ) -> None:
        self._job, self._checkpoints = job, checkpoints
        self._trace = trace or Trace()
        self._machine = machine or EmulatedMachine()
        self._place = place or Place(self._machine.bytes_per_s)
        self._channel = channel
        self._wire = Wire(transport, self._place.link)
        self.reactor = self._place.reactor(transport, channel, self._on_message)
        self.buffers = self._place.buffers(job.memory_bytes)
        self.samples = self._place.samples(job, self._share_memory)
        self.server = Server(
            self._wire,
            job.app,
            job.layout.shape_of,
            self.buffers,
            job.cut.num_blocks if job.staleness == 0 else None,
        )
        reports = LoadReports(self.server, self._wire, lambda report: channel.send(MASTER, report))
        self.reactor.add(reports.poll)
        if self._trace.records_messages:
            self._wire.trace = self.server.trace = self._trace
        self._open_turns = OpenTurns(lambda report: self._channel.send(MASTER, report))
        speed = self._machine.bytes_per_s
        self._moves = ParameterMoves(
            self.server,
            self._wire,
            queue_of_link(speed, cuts=False),
            self._parameters_moved,
            self._on_block,
        )
        self._data_moves = DataMoves(
            self._wire,
            self.samples,
            self._open_turns,
            queue_of_link(speed, cuts=True),
            self._data_moved,
            self._on_block,
        )
        self._wire.on(Kind.TAKEN, self._on_taken)
        self._ownership = Ownership(np.zeros(job.layout.num_blocks))
        self.client = ParameterClient(
            self._wire, self.reactor, job.layout, self._ownership, buffers=self.buffers
        )
        self._turns = Turns(
            job, self._machine, self.client, self.reactor, self._wire, self._trace, self._place, self.samples
        )
        self._orders: deque[Message] = deque()  # that wait until the turn is over
        self._limit = 0
        self._evaluating = 0
        self._must_evaluate = False
        self._is_paused = True

    def run(self) -> int:
        """Work until the master says `Finish`; returns its exit code.

        An error that users can mend is reported to the master, who ends the job; others are raised.
        """
        self._wire.open()
        try:
            self._work()
        except _Finished as finished:
            return finished.exit_code
        except (UserCodeError, AppError) as error:
            log.warning("the app has failed: %s", error, exc_info=error)  # the log has the traceback
            failed = messages.Failed("app", str(error))
        except MachineError:  # a fault of hpcbal itself
            raise
        except HpcbalError as error:  # a full disk, a damaged checkpoint: the job itself has not failed
            log.warning("the executor has failed: %s", error, exc_info=error)
            failed = messages.Failed("error", str(error), int(error.exit_code))
        try:
            self._hold_moves()
            self._channel.send(MASTER, failed)
            while True:  # others may still need its blocks, until the master ends the job
                self.reactor.wait_until(_never)
        except _Finished as finished:
            return finished.exit_code

    def close(self) -> None:
        """Free what the transport keeps; collective, after all executors have finished in order."""
        self.reactor.wait_until(lambda: not self._wire.transport.num_active)
        self._wire.transport.close()
        self.samples.close()
        self.buffers.close()

    # The loop.

    def _work(self) -> NoReturn:
        while True:
            if self.server.failure is not None:
                raise self.server.failure
            if self._orders:
                self._obey(self._orders.popleft())
            elif self._data_moves.has_ready:
                self._data_moves.give_ready()
            elif self._must_evaluate:
                with self._trace.during("objective"):
                    self._evaluate()
            elif not self._take_turn():
                self.reactor.wait_until(self._has_work)

    def _has_work(self) -> bool:
        return (
            bool(self._orders)
            or self.server.failure is not None
            or self._data_moves.has_ready
            or self._must_evaluate
            or (self._may_take_turn() and self._next_turn() is not None)
        )

    def _may_take_turn(self) -> bool:
        return not self._is_paused and len(self._open_turns) < MAX_OPEN_TURNS

    def _next_turn(self) -> Turn | None:
        return self.samples.next_turn(self.samples.limit_within(self._limit))

    def _take_turn(self) -> bool:
        turn = self._next_turn() if self._may_take_turn() else None
        if turn is None:
            return False
        self._turns.take(turn, self._open_turns.begin())
        self.samples.finish(turn)
        self.samples.settle()
        return True

    # Orders.

    def _on_message(self, message: Message) -> None:
        """Note a message; what concerns turns is done between two of them."""
        match message:
            case messages.MayStart(limit):
                self._limit = limit
            case messages.Evaluate(epoch):
                self._evaluating, self._must_evaluate = epoch, True
            case messages.OwnerChanged(blocks, owner):
                self._ownership.change(blocks, owner)
            case messages.MoveBlocks("parameters", blocks, destination):
                self._moves.move(blocks, destination)
            case messages.MoveBlocks("data", blocks, destination):
                self._data_moves.move(blocks, destination)
            case messages.Finish(exit_code):
                raise _Finished(exit_code)
            case _:
                self._orders.append(message)

    def _obey(self, order: Message) -> None:
        match order:
            case messages.Assign():
                with self._trace.during("load"):
                    self._load(order)
                self._channel.send(MASTER, messages.Ready(self.samples.steps_ahead()))
            case messages.Initialise():
                with self._trace.during("initialise"):
                    self._turns.initialise(self.samples)
                self._is_paused = False
                self._channel.send(MASTER, messages.Initialised())
            case messages.Pause():
                self._settle()
                self._hold_moves()
                self._is_paused = True
                self._channel.send(MASTER, messages.Paused(self.samples.steps_ahead()))
            case messages.Save(number):
                with self._trace.during("checkpoint"):
                    self._save(number)
                self._channel.send(MASTER, messages.Saved(number))
            case messages.Continue():
                if self._job.memory_bytes is not None:  # blocks may have come, and all is saved now
                    self.buffers.check(self._wire.rank)
                self._is_paused = False
                self._moves.go_on()
                self._data_moves.go_on()
            case _:
                raise HpcbalError(f"an executor got {order!r}, which it does not know")

    def _settle(self) -> None:
        """Wait until all updates of this worker are applied."""
        self.reactor.wait_until(lambda: not self._open_turns)

    def _hold_moves(self) -> None:
        """Let no block leave until `Continue`, and wait until those on their way have arrived."""
        self._moves.hold()
        self._data_moves.hold()
        self.reactor.wait_until(lambda: self._moves.is_quiet and self._data_moves.is_quiet)

    def _load(self, assign: messages.Assign) -> None:
        rank, job = self._wire.rank, self._job
        self._ownership.owners[:] = assign.parameter_owner
        own_data = [block for block, owner in enumerate(assign.data_owner) if owner == rank]
        own_parameters = [block for block, owner in enumerate(assign.parameter_owner) if owner == rank]
        self.server.begin(own_parameters)
        checkpoints = self._checkpoints
        is_new = assign.saved is None
        saved: Mapping[int, Arrays] = {}
        if assign.saved is not None:
            assert checkpoints is not None
            with self._place.aside():
                saved = checkpoints.load(assign.saved, "parameters", own_parameters)
        parameter_bytes = sum(
            num_rows * table.row_bytes for table, num_rows in map(job.layout.shape_of, own_parameters)
        )
        self.buffers.make_room(held_bytes(parameter_bytes, job.staleness))
        for block, values, release in allocate(job.layout, own_parameters):
            with self._place.aside():
                if is_new:
                    fill_first(job, block, values)
                else:
                    fill_saved(job, block, saved[block], values)
            self.server.add(block, values, release)
        self._share_memory()
        if assign.saved is not None:
            assert checkpoints is not None
            with self._place.aside():
                saved = checkpoints.load(assign.saved, "data", own_data)
        self.samples.expect(own_data)
        for number in own_data:
            with self._place.aside():
                found = (
                    (first_data(job, number), Cursor()) if is_new else saved_data(job, number, saved[number])
                )
            self.samples.add(*found)
            self._share_memory()
            self.buffers.check(rank)
        self.buffers.check(rank)
        if not is_new:
            self._is_paused = False

    def _save(self, number: int) -> None:
        assert self._checkpoints is not None
        self.samples.make_room_for_states()
        with self._place.aside():
            blocks: dict[What, dict[int, dict[str, Any]]] = {
                "parameters": {block: {VALUES: self.server.values(block)} for block in self.server.blocks},
                "data": {
                    block.number: data_arrays(block, self.samples.cursors[block.number])
                    for block in self.samples.states()
                },
            }
            self._checkpoints.save(number, blocks)
        self.samples.saved()

    # Memory.

    @property
    def held_bytes(self) -> int:
        """Bytes of all blocks that are here, and of the dense tables of a worker."""
        tables = self.client.num_bytes if self.samples.cursors else 0
        return self.server.num_bytes + self.samples.num_bytes + self._data_moves.num_bytes + tables

    def _share_memory(self) -> None:
        """Leave to messages what blocks do not take."""
        self.buffers.hold(self.held_bytes)

    # The objective.

    def _on_block(self) -> None:
        """A block has come: if an objective is being computed, it may be missing there."""
        self._share_memory()
        self._must_evaluate = self._evaluating > 0

    def _evaluate(self) -> None:
        """Compute the terms of the objective of all own blocks that miss them, and report them."""
        self._must_evaluate = False
        start_s, epoch = time.monotonic(), self._evaluating
        data = self._turns.evaluate(self.samples.take_unevaluated(epoch), epoch)
        parameters = {}
        for block in self.server.take_unevaluated(epoch):
            table = self._job.layout.table_of(block).name
            with self._place.computing(), calling(self._job.app, "parameter_objective"):
                terms = self._job.app.parameter_objective(table, self.server.values(block))
            parameters[block] = checked_terms("parameter_objective", terms)
        if data or parameters:
            seconds = time.monotonic() - start_s
            self._channel.send(MASTER, messages.Evaluated(epoch, data, parameters, seconds))

    # Reports.

    def _on_taken(self, frame: Frame) -> None:
        for block, given_as, _ in frame.entries.tolist():
            if given_as == Kind.GIVE_PARAMETERS:
                self._moves.on_taken(block, frame.source)
            else:
                self._data_moves.on_taken(block)

    def _parameters_moved(self, blocks: tuple[int, ...], destination: int) -> None:
        self._channel.send(MASTER, messages.BlocksMoved("parameters", blocks, destination))

    def _data_moved(self, blocks: tuple[int, ...], destination: int) -> None:
        self._channel.send(MASTER, messages.BlocksMoved("data", blocks, destination))


def _never() -> bool:
    return False
