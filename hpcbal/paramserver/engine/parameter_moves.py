"""Parameter blocks that change their owner while workers pull and push them.

Access to a block waits only while the block itself is on its way, so few are at a time.

Source: [PS] Sec. 3.3.2, "Data Migration".
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import numpy as np

from hpcbal.paramserver.engine.held_block import HeldBlock
from hpcbal.paramserver.engine.server import Server
from hpcbal.paramserver.engine.wire import Frame, FrameKind, Segments, Wire
from hpcbal.paramserver.master.messages import BlocksMoved
from hpcbal.paramserver.store.moving import MoveQueue
from hpcbal.paramserver.store.server import Give, Moved, Took


class ParameterMoves:
    """Gives away and takes parameter blocks.

    Args:
        server: owns them.
        wire: carries them.
        queue: of blocks to give away.
        report: sends a report to the master.
        on_block: called when a block has come.
    """

    def __init__(
        self,
        server: Server,
        wire: Wire,
        queue: MoveQueue,
        report: Callable[[BlocksMoved], None],
        on_block: Callable[[], None],
    ) -> None:
        self._server, self._wire, self._queue = server, wire, queue
        self._report, self._on_block = report, on_block
        self._sent: list[HeldBlock] = []
        server.on_move = self._perform
        server.on_free = self.release
        wire.on(FrameKind.GIVE_PARAMETERS, self._on_give)

    @property
    def is_quiet(self) -> bool:
        """Whether nothing is on its way from here."""
        return self._queue.is_quiet

    def move(self, blocks: tuple[int, ...], destination: int) -> None:
        """Hand blocks over, one after the other: first the ownership of a block, then its values."""
        for block in blocks:
            self._queue.add(block, destination, self._bytes_of(block))
        self._give_next()

    def hold(self) -> None:
        """Hand no more blocks over until `go_on`."""
        self._queue.hold()

    def go_on(self) -> None:
        """Hand blocks over again."""
        self._queue.go_on()
        self._give_next()

    def _give_next(self) -> None:
        while (piece := self._queue.next_piece()) is not None:
            self._server.perform(self._server.host.move([piece.block], piece.destination))

    def _bytes_of(self, block: int) -> int:
        table, num_rows = self._server.shape_of(block)
        return num_rows * table.row_bytes

    def on_taken(self, block: int, destination: int) -> None:
        """A block has arrived at its new owner."""
        self._server.perform(self._server.host.taken(block, destination))

    def _perform(self, action: Give | Took | Moved) -> None:
        match action:
            case Give():
                self._give(action)
            case Took(block, source):
                self._wire.send(source, FrameKind.TAKEN, [(block, FrameKind.GIVE_PARAMETERS, 0)])
            case Moved(block, destination):
                self._queue.received(block, self._bytes_of(block))
                self._report(BlocksMoved("parameters", (block,), destination))
                self._give_next()

    def _give(self, action: Give) -> None:
        block = action.block
        held = self._server.let_go(block)
        applied = np.array(sorted(action.applied.items()), np.int64).reshape(-1, 2)
        places, rows = held.kept()
        entries = [(block, len(applied), held.evaluated), (block, held.step, len(places))]
        payload = Segments([held.values, applied, places, rows])
        sent = partial(self._note_sent, held)
        self._wire.send(action.destination, FrameKind.GIVE_PARAMETERS, entries, payload, then=sent)

    def _note_sent(self, held: HeldBlock) -> None:
        self._sent.append(held)
        self.release()

    def release(self) -> None:
        """Give back the memory of blocks that have left, once no pull reads them any more."""
        if self._sent and not self._server.host.is_lending:
            for held in self._sent:
                held.release()
            self._sent = []

    def _on_give(self, frame: Frame) -> None:
        (block, num_workers, evaluated), (_, step, num_kept) = frame.entries.tolist()
        table, num_rows = self._server.shape_of(block)
        values = np.empty((num_rows, table.num_columns), table.dtype)
        applied = np.empty((num_workers, 2), np.int64)
        places = np.empty(num_kept, np.int64)
        rows = np.empty((num_kept, table.num_columns), table.dtype)
        self._server.perform(self._server.host.expect(block, frame.source))

        def received() -> None:
            held = HeldBlock(values, evaluated)
            held.restore_kept(step, places, rows)
            self._server.arrived(block, held, dict(applied.tolist()))
            self._on_block()

        self._wire.receive(frame, Segments([values, applied, places, rows]), received)
