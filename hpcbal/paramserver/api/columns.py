"""Columns: arrays whose first axis counts samples, some of them ragged; gathered and scattered by sample."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]
IntArray = NDArray[np.int64]


@dataclass(frozen=True, slots=True, eq=False)
class Ragged:
    """Lists of unequal length, one per sample.

    Attributes:
        values: the lists side by side, shape (total length, ...).
        offsets: sample i has values[offsets[i]:offsets[i + 1]]; int64, shape (num_samples + 1,), from 0.
    """

    values: Array
    offsets: IntArray

    @classmethod
    def of(cls, lists: Sequence[Array], dtype: str | None = None) -> Self:
        """Join one list per sample; `dtype` is needed only if there are no samples."""
        values = np.concatenate(lists) if lists else np.empty(0, dtype)
        offsets = np.zeros(len(lists) + 1, np.int64)
        np.cumsum([len(part) for part in lists], out=offsets[1:])
        return cls(values if dtype is None else values.astype(dtype, copy=False), offsets)

    def __len__(self) -> int:
        """Number of samples."""
        return len(self.offsets) - 1

    def __getitem__(self, sample: int) -> Array:
        """The list of one sample, a view."""
        return self.values[self.offsets[sample] : self.offsets[sample + 1]]

    def __iter__(self) -> Iterator[Array]:
        """The lists in order of samples, views."""
        return (self[sample] for sample in range(len(self)))

    @property
    def lengths(self) -> IntArray:
        """Length of each list, shape (num_samples,)."""
        return np.diff(self.offsets)

    @property
    def nbytes(self) -> int:
        """Bytes of both arrays."""
        return self.values.nbytes + self.offsets.nbytes


Column = Array | Ragged
Columns = Mapping[str, Column]


def places_in_values(column: Ragged, samples: IntArray) -> IntArray:
    """Where the values of these samples lie in `column.values`, in order of the samples."""
    starts, lengths = column.offsets[samples], column.offsets[samples + 1] - column.offsets[samples]
    ends = np.cumsum(lengths)
    total = int(ends[-1]) if len(ends) else 0
    places: IntArray = np.arange(total) + np.repeat(starts - (ends - lengths), lengths)
    return places


Places = dict[tuple[int, ...], tuple[IntArray, list[IntArray]]]
"""Where `gather` found the values of ragged columns, by the identity of their offsets."""


def gather(parts: Sequence[tuple[Columns, IntArray]], places: Places | None = None) -> dict[str, Column]:
    """Join samples of several blocks into new columns.

    Args:
        parts: for each block its columns, and numbers of samples within it; all blocks have the same columns.
        places: what an earlier call with the same blocks and numbers found; kept for the next one.

    Returns: columns with the samples of the first part, then of the second, and so on. Nothing is shared with
        the blocks. Ragged columns that share their offsets in the blocks share them here, which saves time.
    """
    if not parts:
        return {}
    places = {} if places is None else places
    return {name: _gathered([(columns[name], ids) for columns, ids in parts], places) for name in parts[0][0]}


def share_offsets(columns: Columns) -> dict[str, Column]:
    """The same columns; ragged ones with equal offsets share one array of them."""
    found: list[IntArray] = []
    shared: dict[str, Column] = {}
    for name, column in columns.items():
        if isinstance(column, Ragged):
            same = next((each for each in found if np.array_equal(each, column.offsets)), column.offsets)
            found.append(same)
            column = Ragged(column.values, same)
        shared[name] = column
    return shared


def _gathered(parts: list[tuple[Column, IntArray]], places: Places) -> Column:
    if not isinstance(parts[0][0], Ragged):
        return _taken([(column, ids) for column, ids in parts if not isinstance(column, Ragged)])
    ragged = [(column, ids) for column, ids in parts if isinstance(column, Ragged)]
    key = tuple(id(column.offsets) for column, _ in ragged)
    if key not in places:
        lengths = np.concatenate([column.offsets[ids + 1] - column.offsets[ids] for column, ids in ragged])
        offsets = np.zeros(len(lengths) + 1, np.int64)
        np.cumsum(lengths, out=offsets[1:])
        places[key] = offsets, [places_in_values(column, ids) for column, ids in ragged]
    offsets, found = places[key]
    values = [(column.values, own) for (column, _), own in zip(ragged, found, strict=True)]
    return Ragged(_taken(values), offsets)


def _taken(parts: list[tuple[Array, IntArray]]) -> Array:
    first = parts[0][0]
    if len(parts) == 1:
        return first.take(parts[0][1], axis=0)
    joined = np.empty((sum(len(ids) for _, ids in parts), *first.shape[1:]), first.dtype)
    start = 0
    for array, ids in parts:
        # `clip` writes straight into `out`; numbers of samples are in range here.
        array.take(ids, axis=0, out=joined[start : start + len(ids)], mode="clip")
        start += len(ids)
    return joined


def scatter(joined: Columns, parts: Sequence[tuple[Columns, IntArray]]) -> None:
    """Write columns that `gather` joined back into the blocks, in place.

    Lists keep their lengths. See `gather` for `parts`.
    """
    for name, column in joined.items():
        start = 0
        for columns, ids in parts:
            own = columns[name]
            if isinstance(own, Ragged):
                assert isinstance(column, Ragged)
                places = places_in_values(own, ids)
                own.values[places] = column.values[start : start + len(places)]
                start += len(places)
            else:
                assert not isinstance(column, Ragged)
                own[ids] = column[start : start + len(ids)]
                start += len(ids)


def num_samples_of(columns: Columns) -> int | None:
    """Number of samples of the columns; None if there are no columns.

    Raises:
        ValueError: two columns have different numbers.
    """
    lengths = {name: len(column) for name, column in columns.items()}
    if len(set(lengths.values())) > 1:
        raise ValueError(f"columns have different numbers of samples: {lengths}")
    return next(iter(lengths.values()), None)


def num_bytes_of(columns: Columns) -> int:
    """Bytes of all arrays."""
    return sum(column.nbytes for column in columns.values())
