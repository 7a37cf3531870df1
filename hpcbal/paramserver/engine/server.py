"""The owner of parameter blocks: answers pulls from where the values lie, and applies pushes in place.

Blocks are independent of each other. A block that is being sent is lent: it may be sent to several workers at
once, and pushes to it wait. A push of a worker to a block is applied once, in the order of its numbers; a
pull waits for the worker's own pushes. When a block moves away, its ownership goes first: from then on every
access is forwarded, and the new owner keeps it until the values have come.

Source: [PS] Sec. 3.3.2.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hpcbal.errors import UserCodeError
from hpcbal.paramserver.contract import App, apply_update
from hpcbal.paramserver.engine.accesses import ALL_ROWS, Pull, Push, ShapeOf
from hpcbal.paramserver.engine.buffers import Buffers, view
from hpcbal.paramserver.engine.held_block import BEFORE_ALL_STEPS, HeldBlock, PushNumber
from hpcbal.paramserver.engine.routes import Routes
from hpcbal.paramserver.engine.transport import Segments
from hpcbal.paramserver.engine.user_app import calling
from hpcbal.paramserver.engine.wire import Frame, Kind, Wire


@dataclass(slots=True)
class ServerLoad:
    """What a server has done since it last reported.

    Attributes:
        service_s: seconds spent with requests.
        requests: pulls and pushes that were answered.
    """

    service_s: float = 0.0
    requests: int = 0


class Server:
    """The blocks of one executor.

    Attributes:
        app: updates values.
        shape_of: see `ShapeOf`.
        sync_blocks: see below.
        load: what was served since the last report.
        failure: what the app has raised for an update. The job has failed then: whoever drives the server
            raises it. Until the job ends, pushes are acknowledged all the same, so that nobody waits for
            them.
        generation: counts changes of what is here, and of what routes have prepared for.
        kept_step: the last step before which rows of any block are kept.
        on_free: called when a block is lent no more.
        num_lent: blocks that are being sent, each as often as it is; routes count for themselves.

    Args:
        wire: carries the frames; this class handles pulls and pushes.
        app: updates values.
        shape_of: see `ShapeOf`.
        buffers: for pushes and row ids; a push waits at its sender while there is no room.
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
        self._wire, self.app, self.shape_of, self._buffers = wire, app, shape_of, buffers
        self.sync_blocks = sync_blocks
        self._held: dict[int, HeldBlock] = {}
        self._gone: dict[int, int] = {}
        self._coming: dict[int, list[Callable[[], None]]] = {}
        self._without_room: deque[Frame] = deque()
        self.on_free: Callable[[], None] = _nothing
        self.load = ServerLoad()
        self.failure: UserCodeError | None = None
        self.generation = 0
        self.kept_step = BEFORE_ALL_STEPS
        self.num_lent = 0
        self._routes = Routes(self, wire)
        wire.on(Kind.PULL, self._on_pull)
        wire.on(Kind.PUSH, self.on_push)
        wire.on(Kind.FORWARDED_PUSH, self._receive_push)

    # What is here.

    @property
    def blocks(self) -> list[int]:
        """Numbers of the blocks that are here, ascending."""
        return sorted(self._held)

    @property
    def num_bytes(self) -> int:
        """Of all values, and of those kept from before a step."""
        return sum(held.num_bytes for held in self._held.values())

    @property
    def is_idle(self) -> bool:
        """Whether no block is lent, awaited or on its way."""
        return (
            not self._coming
            and not self._without_room
            and not any(held.lent or held.waiting for held in self._held.values())
        )

    def values(self, block: int) -> NDArray[Any]:
        """The values of a block that is here; read only between polls."""
        return self._held[block].values

    def find(self, block: int) -> HeldBlock | None:
        """A block that is here; None if it is not."""
        return self._held.get(block)

    def add(self, block: int, values: NDArray[Any], release: Callable[[], None] | None = None) -> None:
        """Own a block from the start; its values are changed in place.

        Args:
            release: called when the block has moved away and nothing reads the values any more.
        """
        held = HeldBlock(values)
        held.release = release or held.release
        self.own(block, held)

    def own(self, block: int, held: HeldBlock) -> None:
        """Own a block, and serve what has come for it before."""
        self._held[block] = held
        self.generation += 1
        if held.has_kept:
            self.kept_step = max(self.kept_step, held.step)
        self._gone.pop(block, None)
        for attempt in self._coming.pop(block, []):
            attempt()

    def disown(self, block: int, owner: int) -> HeldBlock:
        """Forward every access to a block to its new owner from now on; returns the block."""
        held = self._held.pop(block)
        self.generation += 1
        self._gone[block] = owner
        return held

    def expect(self, block: int) -> None:
        """Own a block whose values are on their way: keep accesses until `own`."""
        self._coming.setdefault(block, [])
        self._gone.pop(block, None)

    @property
    def is_lending(self) -> bool:
        """Whether values of any block are being sent to workers."""
        return self.num_lent > 0 or self._routes.is_sending

    def take_unevaluated(self, epoch: int) -> list[int]:
        """Blocks whose terms of the objective after `epoch` are missing; from now on they are not."""
        missing = [block for block, held in sorted(self._held.items()) if held.evaluated < epoch]
        for block in missing:
            self._held[block].evaluated = epoch
        return missing

    def close(self) -> None:
        """Give up what is prepared; nothing may be on its way."""
        self._routes.close()

    # Pulls.

    def _on_pull(self, frame: Frame) -> None:
        start_s = time.perf_counter()
        entries = frame.entries.tolist()
        need = {block: number for block, number, _ in entries}
        pull = Pull(frame.origin, frame.request, frame.step, frame.share, need, {})
        if not frame.payload_bytes:
            self.try_pull(pull)
        else:
            buffer = self._buffers.take(frame.payload_bytes)
            ids = view(buffer, 0, (frame.payload_bytes // 8,), "int64")

            def received() -> None:
                start = 0
                for block, _, rows in entries:
                    if rows != ALL_ROWS:
                        pull.places[block] = ids[start : start + rows].copy()
                        start += rows
                self.give_back(buffer)
                self.try_pull(pull)

            self._wire.receive(frame, Segments([ids]), received)
        self._count(start_s)

    def try_pull(self, pull: Pull) -> None:
        """Answer a pull if all its blocks are ready; park it otherwise."""
        self._forward_pull(pull)
        for block, number in pull.need.items():
            held = self._held.get(block)
            if held is None:  # it is coming, or will be made when the job starts
                self._coming.setdefault(block, []).append(lambda: self.try_pull(pull))
                return
            if held.last(pull.worker) < number:
                held.waiting.append(lambda: self.try_pull(pull))
                return
        if pull.need:
            self._answer(pull)

    def _forward_pull(self, pull: Pull) -> None:
        by_owner: dict[int, list[int]] = {}
        for block in pull.need:
            if block in self._gone:
                by_owner.setdefault(self._gone[block], []).append(block)
        for owner, blocks in by_owner.items():
            places = [pull.places[block] for block in blocks if block in pull.places]
            entries = [
                (
                    block,
                    pull.need.pop(block),
                    len(pull.places[block]) if block in pull.places else ALL_ROWS,
                )
                for block in blocks
            ]
            payload = Segments(places) if places else None
            self._wire.send(
                owner, Kind.PULL, entries, payload, pull.request, pull.worker, pull.step, pull.share
            )

    def _answer(self, pull: Pull) -> None:
        self.load.requests += 1
        entries, arrays, lent = [], [], []
        buffer = None
        if pull.places:
            sizes = {b: len(p) * self.shape_of(b)[0].row_bytes for b, p in pull.places.items()}
            buffer, start = self._buffers.take(sum(sizes.values())), 0
        for block in pull.need:
            held = self._held[block]
            if block in pull.places:
                places = pull.places[block]
                assert buffer is not None
                rows = view(buffer, start, (len(places), held.values.shape[1]), held.values.dtype)
                held.rows_at(pull.step, places, rows)
                start += sizes[block]
                arrays.append(rows)
                entries.append((block, 0, len(places)))
            else:
                values, is_lent = held.whole_at(pull.step)
                held.note_pull(pull.step, pull.share)
                if is_lent:
                    held.lent += 1
                    self.num_lent += 1
                    lent.append(held)
                arrays.append(values)
                entries.append((block, 0, ALL_ROWS))

        def sent() -> None:
            if buffer is not None:
                self.give_back(buffer)
            for held in lent:
                self._return(held)

        self._wire.send(pull.worker, Kind.PULLED, entries, Segments(arrays), pull.request, then=sent)

    def _return(self, held: HeldBlock) -> None:
        """A lent block has been sent."""
        held.lent -= 1
        self.num_lent -= 1
        self.on_free()
        if not held.lent:
            self.retry(held)

    def retry_all(self, blocks: tuple[int, ...]) -> None:
        """Try again what waits for any of these blocks."""
        self.on_free()
        for block in blocks:
            held = self._held.get(block)
            if held is not None and held.waiting:
                self.retry(held)

    def retry(self, held: HeldBlock) -> None:
        """Try again what waits for a block."""
        waiting, held.waiting = held.waiting, deque()
        for attempt in waiting:
            attempt()

    # Pushes.

    def on_push(self, frame: Frame) -> None:
        if self._without_room or not self._buffers.has_room(frame.payload_bytes):
            # Later ones wait too: the payloads of a source come in the order of their headers.
            self._without_room.append(frame)
            return
        self._receive_push(frame)

    def _receive_push(self, frame: Frame) -> None:
        buffer = self._buffers.take(frame.payload_bytes)
        if frame.kind == Kind.PUSH_ROUTE:
            self._routes.receive(frame, buffer)
            return
        payload = Segments([buffer[: frame.payload_bytes]])
        self._wire.receive(frame, payload, lambda: self._on_pushed(frame, buffer))

    def _on_pushed(self, frame: Frame, buffer: NDArray[np.uint8]) -> None:
        self.pushed(Push.parsed(frame, buffer, self.shape_of))

    def pushed(self, push: Push) -> None:
        """Apply a push whose payload is here, as far as it may be."""
        start_s = time.perf_counter()
        self.load.requests += 1
        push.num_open = push.num_reading = len(push.number)
        for block in list(push.number):
            self._try_push(push, block)
        self._count(start_s)

    def _try_push(self, push: Push, block: int) -> None:
        """Apply one block of a push if it is its turn; forward or park it otherwise."""
        if block in self._gone:
            self._forward_push(push, block)
            return
        held = self._held.get(block)
        if held is None:
            self._coming.setdefault(block, []).append(lambda: self._try_push(push, block))
            return
        last, number = held.last(push.worker), push.number[block]
        if number > last + 1 or (number == last + 1 and (held.lent or self._routes.lends(block))):
            held.waiting.append(lambda: self._try_push(push, block))
            return
        if number == last + 1:
            table, places = self.shape_of(block)[0], push.places.get(block)
            if self.sync_blocks is not None:
                self._routes.note_pulls(block)
                if held.before_update(push.step, places, self.sync_blocks):
                    self.kept_step = push.step
            if self.failure is None:
                try:
                    with calling(self.app, f"update({table.name!r})"):
                        apply_update(self.app, table.name, held.values, places, push.deltas[block])
                except UserCodeError as error:
                    self.failure = error
            if isinstance(held.applied.get(push.worker), PushNumber):
                self.generation += 1  # the blocks of a route have no common number any more
            held.applied[push.worker] = number
        push.num_applied += 1
        self._close_block(push)
        self._done_reading(push)
        if held.waiting:
            self.retry(held)

    def _forward_push(self, push: Push, block: int) -> None:
        rows = len(push.places[block]) if block in push.places else ALL_ROWS
        arrays = [push.places[block]] if block in push.places else []
        arrays.append(push.deltas[block])
        entries = [(block, push.number[block], rows)]
        self._close_block(push)
        self._wire.send(
            self._gone[block],
            Kind.FORWARDED_PUSH,
            entries,
            Segments(arrays),
            push.request,
            push.worker,
            push.step,
            then=lambda: self._done_reading(push),
        )

    def _close_block(self, push: Push) -> None:
        push.num_open -= 1
        if not push.num_open and push.num_applied:
            self._wire.send(push.worker, Kind.APPLIED, (), request=push.request, share=push.num_applied)

    def _done_reading(self, push: Push) -> None:
        push.num_reading -= 1
        if not push.num_reading:
            self.give_back(push.buffer)

    def give_back(self, buffer: NDArray[np.uint8]) -> None:
        """A buffer is no longer needed, whatever it held; receive the pushes that waited for its room."""
        self._buffers.give(buffer)
        while self._without_room and self._buffers.has_room(self._without_room[0].payload_bytes):
            self._receive_push(self._without_room.popleft())

    def _count(self, start_s: float) -> None:
        self.load.service_s += time.perf_counter() - start_s


def _nothing() -> None:
    pass
