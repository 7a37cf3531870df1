"""Facts and columns as one stream of bytes, which may be read in pieces and is unpacked without copies."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hpcbal.paramserver.contract import Array, Column, Columns, IntArray, Ragged

ALIGNMENT = 16
"""Arrays begin at multiples of this, for any type."""

_WORD = np.dtype(np.int64)


class Packed:
    """Facts and groups of columns as a stream: its text's length, the text, and the arrays.

    Arrays are read from where they lie, whenever bytes of them are wanted.

    Args:
        facts: JSON values.
        groups: columns by the name of their group.

    Attributes:
        num_bytes: of the stream.
        parts: its bytes, in order.
    """

    def __init__(self, facts: Mapping[str, Any], groups: Mapping[str, Columns]) -> None:
        arrays: list[NDArray[Any]] = []
        described = {
            group: {name: _describe(column, arrays) for name, column in columns.items()}
            for group, columns in groups.items()
        }
        text = np.frombuffer(json.dumps({"facts": facts, "groups": described}).encode(), np.uint8)
        self.parts: list[NDArray[np.uint8]] = []
        self.num_bytes = 0
        arrays = [np.array([len(text)], _WORD), text, *arrays]
        for array in arrays:
            self._add(array.reshape(-1).view(np.uint8))
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


def unpack(stream: NDArray[np.uint8]) -> tuple[dict[str, Any], dict[str, dict[str, Column]]]:
    """Facts and groups of a whole stream.

    Arrays are views of the stream, which must be aligned and may be changed. Ragged columns with equal
    offsets share them, as in a block that an app has made.
    """
    length = int(stream[: _WORD.itemsize].view(_WORD)[0])
    start = ALIGNMENT
    described = json.loads(bytes(stream[start : start + length]))
    start += length + -length % ALIGNMENT
    groups: dict[str, dict[str, Column]] = {}
    known: list[IntArray] = []  # offsets
    for group, columns in described["groups"].items():
        groups[group] = {}
        for name, parts in columns.items():
            arrays: list[Array] = []
            for dtype, shape in parts:
                array: NDArray[Any] = np.ndarray(shape, dtype, stream.data, start)
                start += array.nbytes + -array.nbytes % ALIGNMENT
                arrays.append(array)
            groups[group][name] = arrays[0] if len(arrays) == 1 else _ragged(arrays[0], arrays[1], known)
    return described["facts"], groups


def _ragged(values: Array, offsets: IntArray, known: list[IntArray]) -> Ragged:
    same = next((each for each in known if np.array_equal(each, offsets)), offsets)
    known.append(same)
    return Ragged(values, same)


def _describe(column: Column, arrays: list[NDArray[Any]]) -> list[tuple[str, tuple[int, ...]]]:
    """Type and shape of each array of a column, which are added to `arrays`."""
    parts = [column.values, column.offsets] if isinstance(column, Ragged) else [column]
    parts = [np.ascontiguousarray(part) for part in parts]
    arrays += parts
    return [(part.dtype.str, part.shape) for part in parts]
