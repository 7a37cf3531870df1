"""A batch: the samples of one turn, gathered from one or more data blocks."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hpcbal.paramserver.api.checks import checked_change
from hpcbal.paramserver.api.columns import Column, Columns, IntArray, Places, Ragged, gather, scatter
from hpcbal.paramserver.api.data_blocks import rng_of_batch
from hpcbal.paramserver.api.update import AppError


@dataclass(frozen=True, slots=True, eq=False)
class DataBlock:
    """Samples that move together, with the app's own state of them.

    Attributes:
        number: of the block.
        first_sample: id of its first sample.
        columns: what the source reads.
        state: what the app keeps for each sample; changed in place.
        rows: which samples of the block columns and state hold, in this order; None: all, in order. A part
            of a block has rows that has been read from disk.
    """

    number: int
    first_sample: int
    columns: Columns
    state: Columns
    rows: IntArray | None = None

    def ids(self, places: IntArray) -> IntArray:
        """Ids of the samples at these places of columns and state."""
        return self.first_sample + (places if self.rows is None else self.rows[places])


class BatchPart:
    """The samples of a batch that come from one data block.

    Attributes:
        data_block: number of the block.
        start, stop: the part's samples are start..stop-1 of the batch.
    """

    def __init__(self, data_block: int, start: int, stop: int, seed: int, epoch: int, position: int) -> None:
        self.data_block, self.start, self.stop = data_block, start, stop
        self._seed, self._epoch, self._position = seed, epoch, position

    @property
    def num_samples(self) -> int:
        """Number of samples of the part, >= 1."""
        return self.stop - self.start

    @cached_property
    def rng(self) -> np.random.Generator:
        """Random numbers for these samples, the same wherever the data block is."""
        return rng_of_batch(self._seed, self._epoch, self.data_block, self._position)


@dataclass(frozen=True, eq=False)
class Batch:
    """The argument of `App.needs`, `App.compute` and `App.objective`.

    Attributes:
        columns: the samples, gathered; not to be changed.
        state: the app's state of them, gathered. `compute` may change its arrays in place (not the lengths of
            ragged ones); the engine writes them back.
        samples: ids of the samples, int64, shape (num_samples,).
        parts: the batch's data blocks, in order of their numbers.
        epoch: number of the epoch, >= 0.
        step_samples: samples of the whole step, over all workers. In `async`, those of this turn. A mean
            gradient divides the sum over the own samples by this number.
        memo: what `needs` may leave for `compute` and `objective`, which get the same batch; empty at first.
    """

    columns: Columns
    state: Columns
    samples: IntArray
    parts: Sequence[BatchPart]
    epoch: int
    step_samples: int
    memo: dict[str, Any] = field(default_factory=dict)

    @property
    def num_samples(self) -> int:
        """Number of samples of the batch."""
        return len(self.samples)

    def array(self, name: str) -> NDArray[Any]:
        """The column or state `name`, one row per sample.

        Raises:
            AppError: there is none, or it is ragged.
        """
        found = self._find(name)
        if isinstance(found, Ragged):
            raise AppError(f"column {name!r} is ragged, expected an array with one row per sample")
        return found

    def ragged(self, name: str) -> Ragged:
        """The ragged column or state `name`.

        Raises:
            AppError: there is none, or it is not ragged.
        """
        found = self._find(name)
        if not isinstance(found, Ragged):
            raise AppError(f"column {name!r} is an array, expected a ragged column")
        return found

    def _find(self, name: str) -> Column:
        for columns in (self.columns, self.state):
            if name in columns:
                return columns[name]
        known = ", ".join([*self.columns, *self.state])
        raise AppError(f"the data has no column {name!r}; its columns and the app's state are: {known}")

    def draw(self, of_part: Callable[[np.random.Generator, int], NDArray[Any]]) -> NDArray[Any]:
        """Draw random numbers that do not depend on how blocks are spread over ranks.

        Args:
            of_part: gets the generator and the number of samples of one part; returns one row per sample.

        Returns: the rows of all parts, shape (num_samples, ...).
        """
        return np.concatenate([of_part(part.rng, part.num_samples) for part in self.parts])


Slices = Sequence[tuple[DataBlock, int, IntArray]]
"""The data blocks of a batch: each block, the first position in its order, places of samples within it."""


def gather_batch(slices: Slices, *, seed: int, epoch: int, step_samples: int | None = None) -> Batch:
    """Make the batch of a turn.

    Args:
        slices: at least one that has samples; they are put in order of blocks.
        seed: of the run.
        epoch: number of the epoch.
        step_samples: see `Batch`; None: as many as the batch has.
    """
    slices = sorted((each for each in slices if len(each[2])), key=lambda each: each[0].number)
    parts, start = [], 0
    for block, position, numbers in slices:
        parts.append(BatchPart(block.number, start, start + len(numbers), seed, epoch, position))
        start += len(numbers)
    places: Places = {}
    return Batch(
        columns=gather([(block.columns, numbers) for block, _, numbers in slices], places),
        state=gather([(block.state, numbers) for block, _, numbers in slices], places),
        samples=np.concatenate([block.ids(numbers) for block, _, numbers in slices] or [_NONE]),
        parts=parts,
        epoch=epoch,
        step_samples=start if step_samples is None else step_samples,
    )


def scatter_state(batch: Batch, slices: Slices) -> None:
    """Write the batch's state back into its data blocks; `slices` as `gather_batch` received them."""
    if batch.state or any(block.state for block, _, _ in slices):
        slices = sorted((each for each in slices if len(each[2])), key=lambda each: each[0].number)
        checked_change(batch.state, slices[0][0].state, batch.num_samples)
        scatter(batch.state, [(block.state, numbers) for block, _, numbers in slices])


def whole_block(block: DataBlock, *, seed: int, epoch: int) -> Batch:
    """All samples of one data block in order of their ids, for the objective and for initial updates.

    Nothing is copied: columns and state are those of the block.
    """
    count = len(_any_column(block.columns))
    # No slice of an epoch starts at this position, so its random numbers are of no other batch.
    part = BatchPart(block.number, 0, count, seed, epoch, count)
    samples = block.first_sample + np.arange(count)
    return Batch(block.columns, block.state, samples, (part,), epoch, count)


def _any_column(columns: Columns) -> Column:
    return next(iter(columns.values()))


_NONE: IntArray = np.empty(0, np.int64)
