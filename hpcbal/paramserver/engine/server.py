"""The owner of parameter blocks: performs what the state machine of its blocks decides.

`store.server.Host` decides what is answered, applied, kept waiting, forwarded or given away. Here are the
values: they are sent from where they lie, and pushes are applied in place. Without a barrier, workers that
take answers slowly get copies, see `store.server.Lending`.

Source: [PS] Sec. 3.3.2.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hpcbal.errors import UserCodeError
from hpcbal.paramserver.api.app import App, apply_update
from hpcbal.paramserver.api.checks import calling
from hpcbal.paramserver.api.columns import IntArray
from hpcbal.paramserver.api.update import Table, held_bytes
from hpcbal.paramserver.engine.buffers import Buffers, PushRoom, view
from hpcbal.paramserver.engine.held_block import HeldBlock
from hpcbal.paramserver.engine.wire import ALL_ROWS, Frame, FrameKind, Segments, Then, Tracer, Wire
from hpcbal.paramserver.master import messages
from hpcbal.paramserver.store.server import (
    Action,
    Answer,
    Apply,
    Forward,
    Give,
    Host,
    Lending,
    Moved,
    Skip,
    Took,
)

ShapeOf = Callable[[int], tuple[Table, int]]
"""Returns the table of a parameter block, and its number of rows."""


@dataclass(slots=True)
class Pull:
    """A pull, or what is left of it here.

    Attributes:
        step, share: see `Frame`.
        number: by block, of the worker's last push to it.
        places: rows of sparse blocks.
    """

    worker: int
    request: int
    step: int
    share: int
    number: dict[int, int]
    places: dict[int, IntArray]

    def whole(self, blocks: Iterable[int]) -> list[int]:
        """Return the blocks that are pulled whole."""
        return [block for block in blocks if block not in self.places]

    def in_rows(self, blocks: Iterable[int]) -> list[int]:
        """Return the blocks that hold a pulled row."""
        return [block for block in blocks if block in self.places]


def entries_of(access: Pull | Push, blocks: Iterable[int]) -> list[tuple[int, int, int]]:
    """Return the entries of a frame that forwards these blocks of a pull or push."""
    places = access.places
    return [
        (block, access.number[block], len(places[block]) if block in places else ALL_ROWS) for block in blocks
    ]


@dataclass(slots=True)
class Push:
    """A push whose payload has come.

    Attributes:
        buffer: holds the payload.
        places, deltas, number: by block; blocks without `places` are pushed whole.
        num_open: blocks that are neither applied nor forwarded.
        num_reading: blocks that still read the buffer.
        num_applied: blocks to acknowledge, in one frame.
    """

    worker: int
    request: int
    step: int
    buffer: NDArray[np.uint8]
    places: dict[int, IntArray] = field(default_factory=dict)
    deltas: dict[int, NDArray[Any]] = field(default_factory=dict)
    number: dict[int, int] = field(default_factory=dict)
    num_open: int = 0
    num_reading: int = 0
    num_applied: int = 0

    def parse(self, entries: Sequence[Sequence[int]], shape_of: ShapeOf) -> None:
        """Find what belongs to each block.

        Args:
            entries: of `FrameKind.PUSH`.
        """
        start = 0
        for block, _, rows in entries:
            if rows != ALL_ROWS:
                self.places[block] = view(self.buffer, start, (rows,), "int64")
                start += 8 * rows
        for block, number, rows in entries:
            table, block_rows = shape_of(block)
            count = block_rows if rows == ALL_ROWS else rows
            self.deltas[block] = view(self.buffer, start, (count, table.num_columns), table.dtype)
            start += count * table.row_bytes
            self.number[block] = number
        self.num_open = self.num_reading = len(entries)


@dataclass(slots=True)
class ServerLoad:
    """A server's work since its last report.

    Attributes:
        service_s: seconds spent with requests.
        requests: pulls and pushes that have come.
    """

    service_s: float = 0.0
    requests: int = 0


class Server:
    """The blocks of one executor.

    Attributes:
        host: decides.
        shape_of: see `ShapeOf`.
        room: for pushes and row ids; a push waits at its sender while there is none.
        lending: which answers are copied.
        load: what was served since the last report.
        failure: what the app has raised for an update. The job has failed then: whoever drives the server
            raises it. Until the job ends, pushes are acknowledged all the same, so that nobody waits for
            them.
        on_free: called when an answer that lent blocks has been sent.
        on_move: performs what blocks need that change their owner.
        trace: gets all requests; None: nobody does.

    Args:
        wire: carries the frames.
        app: updates values.
        shape_of: see `ShapeOf`.
        buffers: for pushes, row ids and rows.
        sync_blocks: in `sync`, the number of data blocks, all of which take a turn in every step; None: pulls
            may see updates of their own step.
    """

    def __init__(
        self,
        wire: Wire,
        app: App,
        shape_of: ShapeOf,
        buffers: Buffers,
        sync_blocks: int | None = None,
    ) -> None:
        self._wire, self._app, self.shape_of = wire, app, shape_of
        self.host: Host[Pull | Push] = Host(wire.rank)
        self.room = PushRoom(buffers, self._receive_push)
        self._sync_blocks = sync_blocks
        self.lending = Lending(may_copy=sync_blocks is None)
        self._held: dict[int, HeldBlock] = {}
        self._actions: deque[Action[Pull | Push]] = deque()
        self.on_free: Callable[[], None] = _nothing
        self.on_move: Callable[[Give | Took | Moved], None] = _cannot_move
        self.load = ServerLoad()
        self.trace: Tracer | None = None
        self.failure: UserCodeError | None = None
        wire.on(FrameKind.PULL, self._on_pull)
        wire.on(FrameKind.PUSH, self.room.admit)
        wire.on(FrameKind.FORWARDED_PUSH, self.room.admit_now)

    # What is here.

    @property
    def blocks(self) -> list[int]:
        """Numbers of the blocks that are here, ascending."""
        return sorted(self._held)

    @property
    def num_bytes(self) -> int:
        """Bytes of all values. In `sync` each may have to be kept as before a step, and counts twice."""
        values = sum(held.values.nbytes for held in self._held.values())
        return held_bytes(values, None if self._sync_blocks is None else 0)

    @property
    def is_idle(self) -> bool:
        """Whether nothing waits, and no block is lent, awaited or on its way."""
        return self.host.is_idle and self.room.is_idle

    def values(self, block: int) -> NDArray[Any]:
        """The values of a block that is here; read only between polls."""
        return self._held[block].values

    def begin(self, blocks: Sequence[int]) -> None:
        """The job begins, and these blocks begin here; `add` follows for each."""
        self.perform(self.host.begin(blocks))

    def add(self, block: int, values: NDArray[Any], release: Callable[[], None] | None = None) -> None:
        """Own a block that begins here; its values are changed in place.

        Args:
            release: called when the block has moved away and nothing reads the values any more.
        """
        held = HeldBlock(values)
        held.release = release or held.release
        self.arrived(block, held, {})

    def arrived(self, block: int, held: HeldBlock, applied: dict[int, int]) -> None:
        """The values of an awaited block are here: serve what has come for it before.

        Args:
            applied: by worker, the number of its last push that is in the values.
        """
        self._held[block] = held
        self.perform(self.host.arrived(block, applied))

    def let_go(self, block: int) -> HeldBlock:
        """A block leaves, as `Give` says; returns what is here of it."""
        return self._held.pop(block)

    def take_unevaluated(self, epoch: int) -> list[int]:
        """Blocks whose terms of the objective after `epoch` are missing; from now on they are not."""
        missing = [block for block, held in sorted(self._held.items()) if held.evaluated < epoch]
        for block in missing:
            self._held[block].evaluated = epoch
        return missing

    # What workers ask for.

    def _on_pull(self, frame: Frame) -> None:
        start_s = time.perf_counter()
        entries = frame.entries.tolist()
        number = {block: number for block, number, _ in entries}
        pull = Pull(frame.origin, frame.request, frame.step, frame.share, number, {})
        if not frame.payload_bytes:
            self._serve_pull(pull, start_s)
            return
        buffer = self.room.buffers.take(frame.payload_bytes)
        ids = view(buffer, 0, (frame.payload_bytes // 8,), "int64")

        def received() -> None:
            start_s, start = time.perf_counter(), 0
            for block, _, rows in entries:
                if rows != ALL_ROWS:
                    pull.places[block] = ids[start : start + rows].copy()
                    start += rows
            self.room.give(buffer)
            self._serve_pull(pull, start_s)

        self._wire.receive(frame, Segments([ids]), received)

    def _serve_pull(self, pull: Pull, start_s: float) -> None:
        """Answer whole blocks from where they lie, and copies of rows."""
        for blocks, lends in ((pull.whole(pull.number), True), (pull.in_rows(pull.number), False)):
            if blocks:
                numbers = [pull.number[block] for block in blocks]
                self.perform(self.host.pull(pull, pull.worker, blocks, numbers, lends))
        self._count(pull.request, start_s, is_pull=True)

    def _receive_push(self, frame: Frame, buffer: NDArray[np.uint8]) -> None:
        payload = Segments([buffer[: frame.payload_bytes]])
        self._wire.receive(frame, payload, partial(self._on_pushed, frame, buffer))

    def _on_pushed(self, frame: Frame, buffer: NDArray[np.uint8]) -> None:
        start_s = time.perf_counter()
        push = Push(frame.origin, frame.request, frame.step, buffer)
        push.parse(frame.entries.tolist(), self.shape_of)
        blocks, numbers = list(push.number), list(push.number.values())
        self.perform(self.host.push(push, push.worker, blocks, numbers))
        self._count(push.request, start_s, is_pull=False)

    def _count(self, request: int, start_s: float, *, is_pull: bool) -> None:
        """Count a request that began to be handled at `start_s`, by `time.perf_counter`."""
        seconds = time.perf_counter() - start_s
        self.load.requests += 1
        self.load.service_s += seconds
        if self.trace is not None:
            self.trace.served(request, seconds, is_pull=is_pull)

    # What the host asks for.

    def perform(self, actions: Sequence[Action[Pull | Push]]) -> None:
        """Perform actions in order; what follows from one is performed after the last."""
        queue = self._actions
        is_busy = bool(queue)
        queue.extend(actions)
        if is_busy:
            return
        while queue:
            self._perform(queue[0])
            queue.popleft()

    def _perform(self, action: Action[Pull | Push]) -> None:
        match action:
            case Answer(Pull() as pull, blocks):
                if rows := pull.in_rows(blocks):
                    self._answer_rows(pull, rows)
                if whole := pull.whole(blocks):
                    self._answer_whole(pull, whole)
            case Apply(Push() as push, blocks):
                self._apply(push, blocks)
            case Skip(Push() as push, blocks):
                self._close(push, len(blocks))
                self._done_reading(push, len(blocks))
            case Forward(Pull() as pull, blocks, owner):
                self._forward_pull(pull, blocks, owner)
            case Forward(Push() as push, blocks, owner):
                self._forward_push(push, blocks, owner)
            case Give() | Took() | Moved():
                self.on_move(action)
            case _:
                raise AssertionError(f"a host asked for {action}")

    def _answer_rows(self, pull: Pull, blocks: Sequence[int]) -> None:
        """Send copies of rows."""
        sizes = [len(pull.places[block]) * self.shape_of(block)[0].row_bytes for block in blocks]
        buffer, start = self.room.buffers.take(sum(sizes)), 0
        entries, arrays = [], []
        for block, size in zip(blocks, sizes, strict=True):
            places, held = pull.places[block], self._held[block]
            rows = view(buffer, start, (len(places), held.values.shape[1]), held.values.dtype)
            held.rows_at(pull.step, places, rows)
            start += size
            arrays.append(rows)
            entries.append((block, 0, len(places)))
        sent = partial(self.room.give, buffer)
        self._wire.send(pull.worker, FrameKind.PULLED, entries, Segments(arrays), pull.request, then=sent)

    def _answer_whole(self, pull: Pull, blocks: Sequence[int]) -> None:
        """Send blocks from where they lie, or copies if their worker is slow and no push needs the room."""
        num_bytes = sum(self._held[block].values.nbytes for block in blocks)
        room = self.room
        if self.lending.copies(pull.worker) and room.is_idle and room.buffers.fits(num_bytes):
            self._answer_copy(pull, blocks, num_bytes)
            self._sent(blocks)
            return
        arrays, reads_values = [], False
        for block in blocks:
            held = self._held[block]
            values, is_lent = held.whole_at(pull.step)
            held.note_pull(pull.step, pull.share)
            reads_values |= is_lent
            arrays.append(values)
        entries = [(block, 0, ALL_ROWS) for block in blocks]
        then = self._timed(pull.worker, num_bytes, partial(self._sent, blocks)) if reads_values else None
        self._wire.send(pull.worker, FrameKind.PULLED, entries, Segments(arrays), pull.request, then=then)
        if not reads_values:  # but what they were before the step
            self._sent(blocks)

    def _answer_copy(self, pull: Pull, blocks: Sequence[int], num_bytes: int) -> None:
        """Send copies of blocks, which may be changed at once."""
        values = [self._held[block].values for block in blocks]
        buffer, start = self.room.buffers.take(num_bytes), 0
        arrays = []
        for each in values:
            copied = view(buffer, start, each.shape, each.dtype)
            np.copyto(copied, each)
            arrays.append(copied)
            start += each.nbytes
        entries = [(block, 0, ALL_ROWS) for block in blocks]
        then = self._timed(pull.worker, num_bytes, partial(self.room.give, buffer))
        self._wire.send(pull.worker, FrameKind.PULLED, entries, Segments(arrays), pull.request, then=then)

    def _timed(self, worker: int, num_bytes: int, sent: Then) -> Then:
        """`sent`, for an answer that leaves now; it also notes how long its worker takes."""
        if not self.lending.may_copy:
            return sent
        start_s = time.perf_counter()

        def taken() -> None:
            self.lending.taken(worker, num_bytes, time.perf_counter() - start_s)
            sent()

        return taken

    def _sent(self, blocks: Sequence[int]) -> None:
        self.perform(self.host.sent(blocks))
        self.on_free()

    def _forward_pull(self, pull: Pull, blocks: Sequence[int], owner: int) -> None:
        places = [pull.places[block] for block in blocks if block in pull.places]
        entries, payload = entries_of(pull, blocks), Segments(places) if places else None
        self._wire.send(
            owner, FrameKind.PULL, entries, payload, pull.request, pull.worker, pull.step, pull.share
        )

    def _apply(self, push: Push, blocks: Sequence[int]) -> None:
        for block in blocks:
            held, table = self._held[block], self.shape_of(block)[0]
            places = push.places.get(block)
            if self._sync_blocks is not None:
                held.before_update(push.step, places, self._sync_blocks)
            self._update(table.name, held.values, places, push.deltas[block])
        push.num_applied += len(blocks)
        self._close(push, len(blocks))
        self._done_reading(push, len(blocks))

    def _update(
        self, table: str, values: NDArray[Any], places: NDArray[np.int64] | None, deltas: NDArray[Any]
    ) -> None:
        """Let the app change values, unless it has failed."""
        if self.failure is None:
            try:
                with calling(self._app, f"update({table!r})"):
                    apply_update(self._app, table, values, places, deltas)
            except UserCodeError as error:
                self.failure = error

    def _forward_push(self, push: Push, blocks: Sequence[int], owner: int) -> None:
        arrays: list[NDArray[Any]] = [push.places[block] for block in blocks if block in push.places]
        arrays += [push.deltas[block] for block in blocks]
        self._close(push, len(blocks))
        self._wire.send(
            owner,
            FrameKind.FORWARDED_PUSH,
            entries_of(push, blocks),
            Segments(arrays),
            push.request,
            push.worker,
            push.step,
            then=partial(self._done_reading, push, len(blocks)),
        )

    def _close(self, push: Push, num_blocks: int) -> None:
        """So many blocks of a push are applied or forwarded; acknowledge it if that is all."""
        push.num_open -= num_blocks
        if not push.num_open and push.num_applied:
            self._wire.send(push.worker, FrameKind.APPLIED, (), request=push.request, share=push.num_applied)

    def _done_reading(self, push: Push, num_blocks: int) -> None:
        push.num_reading -= num_blocks
        if not push.num_reading:
            self.room.give(push.buffer)


def _nothing() -> None:
    pass


def _cannot_move(action: Give | Took | Moved) -> None:
    raise AssertionError(f"nothing performs {action}")


INTERVAL_S = 0.5
"""Between two reports."""


class LoadReports:
    """Reports the load of a server, if there was any.

    Args:
        server: whose load it is.
        wire: has counted bytes.
        send: sends a report to the master.
    """

    def __init__(self, server: Server, wire: Wire, send: Callable[[messages.ServerReport], None]) -> None:
        self._server, self._wire, self._send = server, wire, send
        self._due_s = 0.0
        self._reported = (0, 0)

    def poll(self, now_s: float) -> bool:
        """Report if it is time to; see `Reactor.add`."""
        load = self._server.load
        if now_s < self._due_s:
            return False
        self._due_s = now_s + INTERVAL_S
        if load.requests:
            before_in, before_out = self._reported
            self._reported = bytes_in, bytes_out = self._wire.bytes_in, self._wire.bytes_out
            self._send(
                messages.ServerReport(
                    bytes_in - before_in, bytes_out - before_out, load.service_s, load.requests
                )
            )
            load.service_s, load.requests = 0.0, 0
        return False
