"""Carries data blocks between executors: copies in pieces, then what has changed; see `worker.data_moves`."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from hpcbal.paramserver.contract import DataBlock, IntArray, gather, scatter
from hpcbal.paramserver.engine.packing import Packed, unpack
from hpcbal.paramserver.engine.transport import Segments
from hpcbal.paramserver.engine.wire import Frame, Kind, Wire
from hpcbal.paramserver.store.moving import Piece
from hpcbal.paramserver.worker.data_moves import Carrier, DataMoves
from hpcbal.paramserver.worker.samples import Cursor, WorkerSamples

_CHANGED = "changed"
"""Column with the numbers of the samples whose state follows."""


class DataCarrier(Carrier):
    """Gives and takes data blocks.

    Args:
        wire: carries them.
        samples: the executor's blocks.
        on_bytes: called when a block that comes takes memory here.
        on_block: called when a block has come.

    Attributes:
        moves: decides when blocks leave; set later.
    """

    moves: DataMoves

    def __init__(
        self,
        wire: Wire,
        samples: WorkerSamples,
        on_bytes: Callable[[], None],
        on_block: Callable[[], None],
    ) -> None:
        self._wire, self._samples, self._on_bytes, self._on_block = wire, samples, on_bytes, on_block
        self._copied: dict[int, Packed] = {}  # being copied, by block
        self._coming: dict[int, NDArray[np.uint8]] = {}  # copies of blocks that are still elsewhere
        wire.on(Kind.COPY_DATA, self._on_copy)
        wire.on(Kind.COPIED, self._on_copied)
        wire.on(Kind.GIVE_DATA, self._on_give)

    @property
    def num_bytes(self) -> int:
        """Of copies of blocks that are still elsewhere."""
        return sum(each.nbytes for each in self._coming.values())

    def begin(self, block: DataBlock) -> int:
        facts = {"first_sample": block.first_sample}
        copied = Packed(facts, {"columns": block.columns, "state": block.state})
        self._copied[block.number] = copied
        return copied.num_bytes

    def send(self, piece: Piece) -> None:
        copied = self._copied[piece.block]
        content = Segments([copied.read(piece.start, piece.stop)])
        entries = [(piece.block, copied.num_bytes, piece.start)]
        self._wire.send(piece.destination, Kind.COPY_DATA, entries, content)

    def _on_copy(self, frame: Frame) -> None:
        number, num_bytes, start = frame.entries[0].tolist()
        if number not in self._coming:
            self._coming[number] = np.empty(num_bytes, np.uint8)
            self._on_bytes()
        stop = start + frame.payload_bytes

        def received() -> None:
            self._wire.send(frame.source, Kind.COPIED, [(number, stop - start, 0)])

        self._wire.receive(frame, Segments([self._coming[number][start:stop]]), received)

    def _on_copied(self, frame: Frame) -> None:
        number, num_bytes, _ = frame.entries[0].tolist()
        if self.moves.copied(number, num_bytes):
            del self._copied[number]

    def give(self, block: DataBlock, cursor: Cursor, changed: IntArray, destination: int) -> None:
        facts = {"cursor": [cursor.epoch, cursor.at, cursor.evaluated]}
        packed = Packed(facts, {"numbers": {_CHANGED: changed}, "state": gather([(block.state, changed)])})
        entries = [(block.number, 0, 0)]
        self._wire.send(destination, Kind.GIVE_DATA, entries, Segments(packed.parts))

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
