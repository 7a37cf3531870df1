"""Parameter blocks that change their owner while workers pull and push them.

Source: [PS] Sec. 3.3.2, "Data Migration".
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from hpcbal.paramserver.engine.held_block import HeldBlock
from hpcbal.paramserver.engine.transport import Segments
from hpcbal.paramserver.engine.wire import Frame, Kind, Wire

if TYPE_CHECKING:
    from hpcbal.paramserver.engine.server import Server


class ParameterMoves:
    """Gives away and takes parameter blocks.

    Args:
        server: owns them.
        wire: carries them.
        on_moved: called with (blocks, destination) when blocks have arrived at their new owner.
        on_block: called when a block has come.
    """

    def __init__(
        self,
        server: Server,
        wire: Wire,
        on_moved: Callable[[tuple[int, ...], int], None],
        on_block: Callable[[], None],
    ) -> None:
        self._server, self._wire = server, wire
        self._on_moved, self._on_block = on_moved, on_block
        self._leaving: dict[int, int] = {}  # block -> destination, until it is acknowledged
        self._sent: list[HeldBlock] = []
        wire.on(Kind.GIVE_PARAMETERS, self._on_give)

    @property
    def is_idle(self) -> bool:
        """Whether every block that was given away has arrived."""
        return not self._leaving

    def move(self, blocks: tuple[int, ...], destination: int) -> None:
        """Hand blocks over: their ownership at once, then their values."""
        for block in blocks:
            held = self._server.disown(block, destination)
            self._leaving[block] = destination
            numbers = sorted((worker, held.last(worker)) for worker in held.applied)
            applied = np.array(numbers, np.int64).reshape(-1, 2)
            places, rows = held.kept()
            entries = [(block, len(applied), held.evaluated), (block, held.step, len(places))]
            payload = Segments([held.values, applied, places, rows])
            sent = partial(self._note_sent, held)
            self._wire.send(destination, Kind.GIVE_PARAMETERS, entries, payload, then=sent)
            self._server.retry(held)  # which forwards what has waited

    def _note_sent(self, held: HeldBlock) -> None:
        self._sent.append(held)
        self.release()

    def release(self) -> None:
        """Give back the memory of blocks that have left, once no pull reads them any more."""
        if self._sent and not self._server.is_lending:
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
        self._server.expect(block)

        def received() -> None:
            self._wire.send(frame.source, Kind.TAKEN, [(block, Kind.GIVE_PARAMETERS, 0)])
            held = HeldBlock(values, dict(applied.tolist()), evaluated)
            held.restore_kept(step, places, rows)
            self._server.own(block, held)
            self._on_block()

        self._wire.receive(frame, Segments([values, applied, places, rows]), received)

    def on_taken(self, block: int) -> None:
        """A block has arrived at its new owner."""
        self._on_moved((block,), self._leaving.pop(block))
