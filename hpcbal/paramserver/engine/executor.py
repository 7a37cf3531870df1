"""An executor over MPI, or between threads: drives a `Worker`, and serves whoever asks meanwhile.

Whatever the worker waits for, the executor serves others; only the app's own code keeps them waiting.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import AbstractContextManager, closing, nullcontext
from functools import partial
from typing import Any

import numpy as np

from hpcbal.comm.channel import Channel, Message
from hpcbal.errors import HpcbalError, UserCodeError
from hpcbal.events.event_log import MachineError
from hpcbal.paramserver.api.update import AppError, Parameters, held_bytes
from hpcbal.paramserver.engine.client import ParameterClient
from hpcbal.paramserver.engine.data_carrier import DataCarrier
from hpcbal.paramserver.engine.held_block import allocate
from hpcbal.paramserver.engine.parameter_moves import ParameterMoves
from hpcbal.paramserver.engine.rank_resources import RankResources
from hpcbal.paramserver.engine.server import LoadReports, Server
from hpcbal.paramserver.engine.wire import Frame, FrameKind, Tracer, Transport, Wire
from hpcbal.paramserver.master import messages
from hpcbal.paramserver.master.messages import What
from hpcbal.paramserver.store.layout import Ownership
from hpcbal.paramserver.store.moving import queue_of_link
from hpcbal.paramserver.worker.app_hands import AppHands, CheckedUpdates, Wanted
from hpcbal.paramserver.worker.data_moves import DataMoves
from hpcbal.paramserver.worker.loading import (
    VALUES,
    Arrays,
    Checkpoints,
    EmulatedMachine,
    JobSetup,
    data_arrays,
    fill_first,
    fill_saved,
    first_data,
    saved_data,
)
from hpcbal.paramserver.worker.resources import Waits
from hpcbal.paramserver.worker.samples import Cursor, OpenTurns, Turn
from hpcbal.paramserver.worker.worker import Worker

log = logging.getLogger(__name__)

MASTER = 0
"""The rank that the executor reports to."""


class _Finished(Exception):  # noqa: N818 - not an error
    """The master has ended the job, maybe amid a turn."""

    def __init__(self, exit_code: int) -> None:
        super().__init__(exit_code)
        self.exit_code = exit_code


class Executor(AppHands):
    """One rank of a job, from `Assign` to `EndStart`.

    Args:
        transport: to the other executors.
        channel: to and from the master.
        job: what to train.
        machine: how fast to be; None: as fast as the machine is.
        checkpoints: where to save and load blocks; None: the job is never saved.
        trace: records what the executor does; None: nothing is recorded.
        resources: where it runs; None: it has the rank for itself, with a link as fast as that of `machine`.
    """

    def __init__(
        self,
        transport: Transport,
        channel: Channel,
        job: JobSetup,
        machine: EmulatedMachine | None = None,
        checkpoints: Checkpoints | None = None,
        trace: Tracer | None = None,
        resources: RankResources | None = None,
    ) -> None:
        self._checkpoints = checkpoints
        self._trace = trace or Tracer()
        self._machine = machine or EmulatedMachine()
        self._resources = resources or RankResources(self._machine.bytes_per_s)
        self._channel = channel
        self._wire = Wire(transport, self._resources.link)
        self._pull_start_s = 0.0
        self._terms: Future[Mapping[str, float]] | None = None
        self.reactor = self._resources.reactor(transport, channel, self._on_message)
        self.buffers = self._resources.buffers(job.memory_bytes)
        self.samples = self._resources.samples(job, self._share_memory)
        super().__init__(job, self.samples)
        self.server = Server(
            self._wire,
            job.app,
            job.layout.shape_of,
            self.buffers,
            job.cut.num_blocks if job.staleness == 0 else None,
        )
        report = partial(channel.send, MASTER)
        reports = LoadReports(self.server, self._wire, report)
        self.reactor.add(reports.poll)
        if self._trace.records_messages:
            self._wire.trace = self.server.trace = self._trace
        speed = self._machine.bytes_per_s
        self._moves = ParameterMoves(
            self.server, self._wire, queue_of_link(speed, cuts=False), report, self._on_block
        )
        self._carrier = DataCarrier(self._wire, self.samples, self._share_memory, self._on_block)
        self._wire.on(FrameKind.TAKEN, self._on_taken)
        self._ownership = Ownership(np.zeros(job.layout.num_blocks))
        self.client = ParameterClient(self._wire, job.layout, self._ownership, buffers=self.buffers)
        steps = None if job.is_async else job.steps
        self._worker = Worker(
            steps, self.samples, self, self._resources.subtasks, report, partial(self._data_moves, speed)
        )

    def _data_moves(self, bytes_per_s: float | None, open_turns: OpenTurns) -> DataMoves:
        queue = queue_of_link(bytes_per_s, cuts=True)
        moves = DataMoves(self.samples, open_turns, queue, self._carrier, partial(self._channel.send, MASTER))
        self._carrier.moves = moves
        return moves

    def run(self) -> int:
        """Work until the master says `EndStart`; returns its exit code.

        An error that users can mend is reported to the master, who ends the job; others are raised.
        """
        self._wire.open()
        try:
            self._drive(self._worker.life())
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
            self._drive(self._worker.hold_moves())
            self._channel.send(MASTER, failed)
            while True:  # others may still need its blocks, until the master ends the job
                self.reactor.wait_until(_never)
        except _Finished as finished:
            return finished.exit_code

    def _drive(self, waits: Waits[Any]) -> None:
        """Serve others until each condition holds that the worker waits for."""
        with closing(waits):
            for condition in waits:
                self.reactor.wait_until(condition)

    def close(self) -> None:
        """Free what the transport keeps; collective, after all executors have finished in order."""
        self.reactor.wait_until(lambda: not self._wire.transport.num_active)
        self._wire.transport.close()
        self.samples.close()
        self.buffers.close()

    # What comes.

    def _on_message(self, message: Message) -> None:
        if isinstance(message, messages.EndStart):
            raise _Finished(message.exit_code)
        self._worker.hear(message)

    def _on_block(self) -> None:
        self._share_memory()
        self._worker.block_came()

    def _on_taken(self, frame: Frame) -> None:
        for block, given_as, _ in frame.entries.tolist():
            if given_as == FrameKind.GIVE_PARAMETERS:
                self._moves.on_taken(block, frame.source)
            else:
                self._carrier.moves.taken(block)

    # See `Hands`.

    @property
    def worker_bytes(self) -> int:
        return self._wire.worker_bytes

    @property
    def num_unapplied(self) -> int:
        return self.client.num_unapplied

    @property
    def server_is_quiet(self) -> bool:
        return self._moves.is_quiet

    @property
    def failure(self) -> HpcbalError | None:
        return self.server.failure

    def change_owner(self, blocks: Sequence[int], owner: int) -> None:
        self._ownership.change(blocks, owner)

    def move_parameters(self, blocks: tuple[int, ...], destination: int) -> None:
        self._moves.move(blocks, destination)

    def hold_parameters(self) -> None:
        self._moves.hold()

    def go_on(self) -> None:
        if self._job.memory_bytes is not None:  # blocks may have come, and all is saved now
            self.buffers.check(self._wire.rank)
        self._moves.go_on()

    def aside(self) -> AbstractContextManager[None]:
        return self._resources.aside()

    def paced(self, num_samples: int) -> AbstractContextManager[None]:
        """Let the block last as long as it would on the emulated machine, if there is one."""
        machine = self._machine
        if machine.seconds_per_sample is None:
            return nullcontext()
        seconds = num_samples * machine.seconds_per_sample / machine.speed
        return self._resources.taking(self.reactor, seconds)

    def pull(self, wanted: Wanted, step: int, share: int, *, keeps_dense: bool = False) -> Waits[Parameters]:
        client = self.client
        self._pull_start_s = time.monotonic()
        pull = client.start_pull(wanted.needs, step, share, keeps_dense=keeps_dense)
        yield lambda: pull.is_over
        values = client.finish_pull(pull)
        yield lambda: not client.num_unsent  # the app may use the memory of its last updates again
        return values

    def push(self, updates: CheckedUpdates, step: int, applied: Callable[[], None]) -> Waits[None]:
        client = self.client
        yield lambda: not client.num_unsent
        client.push(updates, applied, step)
        client.drop_rows()

    def computed(self, turn: Turn, start_s: float, end_s: float) -> None:
        self._trace.turn(turn.epoch, self._pull_start_s, start_s, end_s, turn.num_samples)

    @property
    def is_at_objective(self) -> bool:
        """Whether the app computes an objective, in a thread of its own."""
        return self._terms is not None and not self._terms.done()

    def begin_terms(
        self, compute: Callable[[], Mapping[str, float]]
    ) -> Callable[[], Mapping[str, float] | None]:
        self._terms = terms = self._resources.apart(compute)
        return lambda: terms.result() if terms.done() else None

    def listen(self) -> None:
        self.reactor.listen()

    def drop(self) -> None:
        self._terms = None
        self.client.drop_rows()

    def parameter_objectives(self, epoch: int) -> Iterator[tuple[int, Callable[[], Mapping[str, float]]]]:
        for block in self.server.take_unevaluated(epoch):
            table = self._job.layout.table_of(block).name
            yield block, partial(self.terms_of_parameters, table, self.server.values(block))

    def during(self, kind: str) -> AbstractContextManager[None]:
        return self._trace.during(kind)

    # Blocks that are loaded and saved.

    def load(self, order: messages.Assign) -> Waits[None]:
        yield from ()  # others wait meanwhile
        self._load(order)

    def save(self, number: int) -> Waits[None]:
        yield from ()
        self._save(number)

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
            with self.aside():
                saved = checkpoints.load(assign.saved, "parameters", own_parameters)
        parameter_bytes = sum(
            num_rows * table.row_bytes for table, num_rows in map(job.layout.shape_of, own_parameters)
        )
        self.buffers.make_room(held_bytes(parameter_bytes, job.staleness))
        for block, values, release in allocate(job.layout, own_parameters):
            with self.aside():
                if is_new:
                    fill_first(job, block, values)
                else:
                    fill_saved(job, block, saved[block], values)
            self.server.add(block, values, release)
        self._share_memory()
        if assign.saved is not None:
            assert checkpoints is not None
            with self.aside():
                saved = checkpoints.load(assign.saved, "data", own_data)
        self.samples.expect(own_data)
        for number in own_data:
            with self.aside():
                found = (
                    (first_data(job, number), Cursor()) if is_new else saved_data(job, number, saved[number])
                )
            self.samples.add(*found)
            self._share_memory()
            self.buffers.check(rank)
        self.buffers.check(rank)

    def _save(self, number: int) -> None:
        assert self._checkpoints is not None
        self.samples.make_room_for_states()
        with self.aside():
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
        return self.server.num_bytes + self.samples.num_bytes + self._carrier.num_bytes + tables

    def _share_memory(self) -> None:
        """Leave to messages what blocks do not take."""
        self.buffers.hold(self.held_bytes)


def _never() -> bool:
    return False
