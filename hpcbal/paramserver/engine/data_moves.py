"""Data blocks that move between workers: samples, the app's state of them, and their cursor.

A block moves while its worker still takes turns with it. First a copy travels in pieces, in what turns leave
free of the link. Then the worker gives the block up between two turns; what follows is only the cursor, and
the state of those samples that turns have changed since the copy began. So training waits for little, however
large the block is.

Source: [PS] Sec. 3.3.2, "Data Migration". Deviation: the paper locks a block while it is sent.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import numpy as np
from numpy.typing import NDArray

from hpcbal.paramserver.contract import DataBlock, IntArray, gather, scatter
from hpcbal.paramserver.engine.open_turns import OpenTurns
from hpcbal.paramserver.engine.packing import Packed, unpack
from hpcbal.paramserver.engine.samples import Cursor, WorkerSamples
from hpcbal.paramserver.engine.transport import Segments
from hpcbal.paramserver.engine.wire import Frame, Kind, Wire
from hpcbal.paramserver.store.moving import MoveQueue

_CHANGED = "changed"
"""Column with the numbers of the samples whose state follows."""


class DataMoves:
    """Gives away and takes data blocks.

    Args:
        wire: carries them.
        samples: the executor's blocks.
        open_turns: a block leaves when the turns that have used it are over.
        queue: of pieces to send.
        on_moved: called with (blocks, destination) when blocks have arrived there.
        on_block: called when a block has come, or takes more or less memory here.
    """

    def __init__(
        self,
        wire: Wire,
        samples: WorkerSamples,
        open_turns: OpenTurns,
        queue: MoveQueue,
        on_moved: Callable[[tuple[int, ...], int], None],
        on_block: Callable[[], None],
    ) -> None:
        self._wire, self._samples, self._open_turns = wire, samples, open_turns
        self._queue, self._on_moved, self._on_block = queue, on_moved, on_block
        self._copied: dict[int, Packed] = {}  # being copied, by block
        self._ready: dict[int, int] = {}  # copied block -> destination
        self._leaving: dict[int, int] = {}  # given up, and not yet there
        self._coming: dict[int, NDArray[np.uint8]] = {}  # copies of blocks that are still elsewhere
        wire.on(Kind.COPY_DATA, self._on_copy)
        wire.on(Kind.COPIED, self._on_copied)
        wire.on(Kind.GIVE_DATA, self._on_give)

    @property
    def is_quiet(self) -> bool:
        """Whether nothing is on its way from here."""
        return self._queue.is_quiet and not self._leaving

    @property
    def has_ready(self) -> bool:
        """Whether blocks have been copied and may be given up."""
        return bool(self._ready) and not self._queue.is_held

    @property
    def num_bytes(self) -> int:
        """Of copies of blocks that are still elsewhere."""
        return sum(each.nbytes for each in self._coming.values())

    def move(self, blocks: tuple[int, ...], destination: int) -> None:
        """Copy blocks; `give_ready` gives them up then."""
        for number in blocks:
            block = self._samples.watch(number)
            facts = {"first_sample": block.first_sample}
            copied = Packed(facts, {"columns": block.columns, "state": block.state})
            self._copied[number] = copied
            self._queue.add(number, destination, copied.num_bytes)
        self._send_pieces()

    def hold(self) -> None:
        """Send no more pieces and give up no block until `go_on`."""
        self._queue.hold()

    def go_on(self) -> None:
        """Send pieces again."""
        self._queue.go_on()
        self._send_pieces()

    def _send_pieces(self) -> None:
        while (piece := self._queue.next_piece()) is not None:
            copied = self._copied[piece.block]
            content = Segments([copied.read(piece.start, piece.stop)])
            entries = [(piece.block, copied.num_bytes, piece.start)]
            self._wire.send(piece.destination, Kind.COPY_DATA, entries, content)

    def _on_copy(self, frame: Frame) -> None:
        number, num_bytes, start = frame.entries[0].tolist()
        if number not in self._coming:
            self._coming[number] = np.empty(num_bytes, np.uint8)
            self._on_block()
        stop = start + frame.payload_bytes

        def received() -> None:
            self._wire.send(frame.source, Kind.COPIED, [(number, stop - start, 0)])

        self._wire.receive(frame, Segments([self._coming[number][start:stop]]), received)

    def _on_copied(self, frame: Frame) -> None:
        number, num_bytes, _ = frame.entries[0].tolist()
        destination = self._queue.received(number, num_bytes)
        if destination is not None:
            del self._copied[number]
            self._ready[number] = destination
        self._send_pieces()

    # Blocks change their owner.

    def give_ready(self) -> None:
        """Give up the blocks that have been copied; between two turns."""
        for number, destination in self._ready.items():
            block, cursor, changed = self._samples.remove(number)
            self._leaving[number] = destination
            self._open_turns.after(partial(self._give, block, cursor, changed))
        self._ready = {}

    def _give(self, block: DataBlock, cursor: Cursor, changed: IntArray) -> None:
        facts = {"cursor": [cursor.epoch, cursor.at, cursor.evaluated]}
        packed = Packed(facts, {"numbers": {_CHANGED: changed}, "state": gather([(block.state, changed)])})
        entries = [(block.number, 0, 0)]
        self._wire.send(self._leaving[block.number], Kind.GIVE_DATA, entries, Segments(packed.parts))

    def _on_give(self, frame: Frame) -> None:
        number = int(frame.entries[0, 0])
        given = np.empty(frame.payload_bytes, np.uint8)

        def received() -> None:
            facts, copied = unpack(self._coming.pop(number))
            last, given_groups = unpack(given)
            changed = given_groups["numbers"][_CHANGED]
            assert isinstance(changed, np.ndarray)
            scatter(given_groups["state"], [(copied["state"], changed)])
            block = DataBlock(number, int(facts["first_sample"]), copied["columns"], copied["state"])
            self._samples.add(block, Cursor(*last["cursor"]))
            self._wire.send(frame.source, Kind.TAKEN, [(number, Kind.GIVE_DATA, 0)])
            self._on_block()

        self._wire.receive(frame, Segments([given]), received)

    def on_taken(self, block: int) -> None:
        """A block has arrived at its new owner."""
        self._on_moved((block,), self._leaving.pop(block))
