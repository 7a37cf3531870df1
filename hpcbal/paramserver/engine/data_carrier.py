"""Carries data blocks between executors: copies in pieces, then what has changed; see `worker.data_moves`."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hpcbal.paramserver.api.batch import DataBlock
from hpcbal.paramserver.api.columns import IntArray, gather, scatter
from hpcbal.paramserver.engine.wire import Frame, FrameKind, Segments, Wire
from hpcbal.paramserver.store.moving import Segment
from hpcbal.paramserver.worker.data_moves import Carrier, DataMoves
from hpcbal.paramserver.worker.samples import Cursor, WorkerSamples

ALIGNMENT = 16
"""Arrays begin at multiples of this, for any type."""

_WORD = np.dtype(np.int64)


class Packed:
    """Something with arrays as a stream of bytes, which may be read in pieces and is unpacked without copies.

    Its pickle (protocol 5) and the arrays, which are read from where they lie when their bytes are wanted.

    Args:
        content: to pack.

    Attributes:
        num_bytes: of the stream.
        parts: its bytes, in order.
    """

    def __init__(self, content: object) -> None:
        buffers: list[pickle.PickleBuffer] = []
        text = np.frombuffer(pickle.dumps(content, 5, buffer_callback=buffers.append), np.uint8)
        arrays = [text, *(np.asarray(buffer.raw()) for buffer in buffers)]
        head = np.array([len(arrays), *map(len, arrays)], _WORD)
        self.parts: list[NDArray[np.uint8]] = []
        self.num_bytes = 0
        for array in (head.view(np.uint8), *arrays):
            self._add(array)
            self._add(np.zeros(-self.num_bytes % ALIGNMENT, np.uint8))
        self._starts = np.cumsum([0, *(len(part) for part in self.parts)])

    def _add(self, part: NDArray[np.uint8]) -> None:
        if len(part):
            self.parts.append(part)
            self.num_bytes += len(part)

    def read(self, start: int, stop: int) -> NDArray[np.uint8]:
        """Bytes start..stop-1 of the stream, a copy."""
        content = np.empty(stop - start, np.uint8)
        index = int(np.searchsorted(self._starts, start, side="right")) - 1
        at = start
        while at < stop:
            part, first = self.parts[index], int(self._starts[index])
            end = min(stop, first + len(part))
            content[at - start : end - start] = part[at - first : end - first]
            at, index = end, index + 1
        return content


def unpack(stream: NDArray[np.uint8]) -> Any:
    """Return what was packed; arrays are views of the stream, which must be aligned and may be changed."""
    count = int(stream[: _WORD.itemsize].view(_WORD)[0])
    sizes = stream[_WORD.itemsize : (1 + count) * _WORD.itemsize].view(_WORD).tolist()
    start, parts = (1 + count) * _WORD.itemsize, []
    for size in sizes:
        start += -start % ALIGNMENT
        parts.append(stream[start : start + size])
        start += size
    return pickle.loads(parts[0].tobytes(), buffers=parts[1:])


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
        wire.on(FrameKind.COPY_DATA, self._on_copy)
        wire.on(FrameKind.COPIED, self._on_copied)
        wire.on(FrameKind.GIVE_DATA, self._on_give)

    @property
    def num_bytes(self) -> int:
        """Bytes of the copies of blocks that are still elsewhere."""
        return sum(each.nbytes for each in self._coming.values())

    def begin(self, block: DataBlock) -> int:
        copied = Packed((block.first_sample, dict(block.columns), dict(block.state)))
        self._copied[block.number] = copied
        return copied.num_bytes

    def send(self, piece: Segment) -> None:
        copied = self._copied[piece.block]
        content = Segments([copied.read(piece.start, piece.stop)])
        entries = [(piece.block, copied.num_bytes, piece.start)]
        self._wire.send(piece.destination, FrameKind.COPY_DATA, entries, content)

    def _on_copy(self, frame: Frame) -> None:
        number, num_bytes, start = frame.entries[0].tolist()
        if number not in self._coming:
            self._coming[number] = np.empty(num_bytes, np.uint8)
            self._on_bytes()
        stop = start + frame.payload_bytes

        def received() -> None:
            self._wire.send(frame.source, FrameKind.COPIED, [(number, stop - start, 0)])

        self._wire.receive(frame, Segments([self._coming[number][start:stop]]), received)

    def _on_copied(self, frame: Frame) -> None:
        number, num_bytes, _ = frame.entries[0].tolist()
        if self.moves.copied(number, num_bytes):
            del self._copied[number]

    def give(self, block: DataBlock, cursor: Cursor, changed: IntArray, destination: int) -> None:
        packed = Packed((cursor, changed, gather([(block.state, changed)])))
        entries = [(block.number, 0, 0)]
        self._wire.send(destination, FrameKind.GIVE_DATA, entries, Segments(packed.parts))

    def _on_give(self, frame: Frame) -> None:
        number = int(frame.entries[0, 0])
        given = np.empty(frame.payload_bytes, np.uint8)

        def received() -> None:
            first_sample, columns, state = unpack(self._coming.pop(number))
            cursor, changed, new_state = unpack(given)
            scatter(new_state, [(state, changed)])
            self._samples.add(DataBlock(number, first_sample, columns, state), cursor)
            self._wire.send(frame.source, FrameKind.TAKEN, [(number, FrameKind.GIVE_DATA, 0)])
            self._on_block()

        self._wire.receive(frame, Segments([given]), received)
