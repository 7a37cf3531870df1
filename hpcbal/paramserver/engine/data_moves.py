"""Data blocks that move between workers: samples, the app's state of them, and their cursor."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hpcbal.paramserver.contract import Column, Columns, DataBlock, Ragged
from hpcbal.paramserver.engine.samples import Cursor, WorkerSamples
from hpcbal.paramserver.engine.transport import Segments
from hpcbal.paramserver.engine.wire import Frame, Kind, Wire


class DataMoves:
    """Gives away and takes data blocks.

    Args:
        wire: carries them.
        samples: the executor's blocks.
        on_moved: called with (blocks, destination) when blocks have arrived there.
        on_block: called when a block has come.
    """

    def __init__(
        self,
        wire: Wire,
        samples: WorkerSamples,
        on_moved: Callable[[tuple[int, ...], int], None],
        on_block: Callable[[], None],
    ) -> None:
        self._wire, self._samples = wire, samples
        self._on_moved, self._on_block = on_moved, on_block
        self._leaving: dict[int, int] = {}
        wire.on(Kind.GIVE_DATA, self._on_give)

    @property
    def is_idle(self) -> bool:
        """Whether every block that was given away has arrived."""
        return not self._leaving

    def move(self, blocks: tuple[int, ...], destination: int) -> None:
        """Give blocks away, between two turns and when all their updates are applied."""
        for number in blocks:
            block, cursor = self._samples.remove(number)
            self._leaving[number] = destination
            text, arrays = _described(block, cursor)
            description = np.frombuffer(text, np.uint8)
            payload = Segments([description, *arrays])
            self._wire.send(destination, Kind.GIVE_DATA, [(number, len(description), 0)], payload)

    def _on_give(self, frame: Frame) -> None:
        number, text_bytes, _ = frame.entries[0].tolist()
        buffer = np.empty(frame.payload_bytes, np.uint8)

        def received() -> None:
            block, cursor = _restored(number, bytes(buffer[:text_bytes]), buffer[text_bytes:])
            self._samples.add(block, cursor)
            self._wire.send(frame.source, Kind.TAKEN, [(number, Kind.GIVE_DATA, 0)])
            self._on_block()

        self._wire.receive(frame, Segments([buffer]), received)

    def on_taken(self, block: int) -> None:
        """A block has arrived at its new owner."""
        self._on_moved((block,), self._leaving.pop(block))


def _described(block: DataBlock, cursor: Cursor) -> tuple[bytes, list[NDArray[Any]]]:
    """A description of a block, and its arrays in the description's order."""
    arrays: list[NDArray[Any]] = []

    def describe(columns: Columns) -> dict[str, Any]:
        return {name: _describe(column, arrays) for name, column in columns.items()}

    facts = {
        "first_sample": block.first_sample,
        "cursor": [cursor.epoch, cursor.at, cursor.evaluated],
        "columns": describe(block.columns),
        "state": describe(block.state),
    }
    return json.dumps(facts).encode(), arrays


def _describe(column: Column, arrays: list[NDArray[Any]]) -> list[tuple[str, tuple[int, ...]]]:
    """Type and shape of each array of a column, which are added to `arrays`."""
    parts = [column.values, column.offsets] if isinstance(column, Ragged) else [column]
    parts = [np.ascontiguousarray(part) for part in parts]
    arrays += parts
    return [(part.dtype.str, part.shape) for part in parts]


def _restored(number: int, text: bytes, content: NDArray[np.uint8]) -> tuple[DataBlock, Cursor]:
    facts: Mapping[str, Any] = json.loads(text)
    start = 0

    def restore(described: Mapping[str, list[tuple[str, list[int]]]]) -> dict[str, Column]:
        nonlocal start
        columns: dict[str, Column] = {}
        for name, parts in described.items():
            arrays = []
            for dtype, shape in parts:
                stop = start + int(np.prod(shape)) * np.dtype(dtype).itemsize
                # A copy of its own is aligned, and may be changed.
                arrays.append(np.frombuffer(content[start:stop].tobytes(), dtype).reshape(shape).copy())
                start = stop
            columns[name] = Ragged(*arrays) if len(arrays) == 2 else arrays[0]
        return columns

    columns, state = restore(facts["columns"]), restore(facts["state"])
    block = DataBlock(number, int(facts["first_sample"]), columns, state)
    return block, Cursor(*facts["cursor"])
