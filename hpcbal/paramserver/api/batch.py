"""Data blocks, which samples each turn takes of them, and a batch: these samples, gathered.

None of this depends on ranks. So a data block may move between two steps, and steps hold the same samples.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hpcbal.errors import InputError
from hpcbal.paramserver.api.checks import checked_change
from hpcbal.paramserver.api.columns import Column, Columns, IntArray, Places, Ragged, gather, scatter
from hpcbal.paramserver.api.update import AppError


class Purpose(IntEnum):
    """The purpose of random numbers; part of their seed."""

    ORDER = 1
    """Order of a data block's samples: (epoch, data block)."""

    BATCH = 2
    """`BatchPart.rng`: (epoch, data block, first position)."""

    STATE = 3
    """`App.initial_state`: (data block,)."""

    PARAMETERS = 4
    """`App.initial`: (crc32 of the table's name, parameter block)."""


def generator(seed: int, purpose: Purpose, *place: int) -> np.random.Generator:
    """Make a generator from the run's seed and a place; numbers >= 0."""
    return np.random.Generator(np.random.PCG64(np.random.SeedSequence([seed, purpose, *place])))


def rng_of_state(seed: int, data_block: int) -> np.random.Generator:
    """The generator that `App.initial_state` gets for a data block."""
    return generator(seed, Purpose.STATE, data_block)


def rng_of_parameters(seed: int, table: str, parameter_block: int) -> np.random.Generator:
    """The generator that `App.initial` gets for a block of a table."""
    return generator(seed, Purpose.PARAMETERS, zlib.crc32(table.encode()), parameter_block)


def rng_of_batch(seed: int, epoch: int, data_block: int, position: int) -> np.random.Generator:
    """The generator of the part of a batch that starts at this position of the data block's order."""
    return generator(seed, Purpose.BATCH, epoch, data_block, position)


@dataclass(frozen=True, slots=True)
class DataBlocks:
    """Samples 0..num_samples-1 in blocks of neighbours whose sizes differ by at most one.

    Attributes:
        num_samples: >= 1.
        num_blocks: 1..num_samples.

    Raises:
        InputError: an attribute is out of range.
    """

    num_samples: int
    num_blocks: int

    def __post_init__(self) -> None:
        if not 1 <= self.num_blocks <= self.num_samples:
            raise InputError(
                f"blocks.data: got {self.num_blocks} blocks of {self.num_samples} samples, "
                "allowed: 1 to as many blocks as samples, and at least 1 sample"
            )

    def first(self, block: int) -> int:
        """The block's first sample; of block `num_blocks`, the number of samples."""
        return block * self.num_samples // self.num_blocks

    def size(self, block: int) -> int:
        """Number of samples of the block."""
        return self.first(block + 1) - self.first(block)

    def samples(self, block: int) -> IntArray:
        """Ids of the block's samples, int64, ascending."""
        return np.arange(self.first(block), self.first(block + 1))


def order_of_block(seed: int, epoch: int, block: int, size: int) -> IntArray:
    """Order in which an epoch takes a data block's samples.

    Args:
        seed: of the run.
        epoch: >= 0.
        block: number of the data block.
        size: number of its samples.

    Returns: a permutation of 0..size-1: numbers of samples within the block.
    """
    return generator(seed, Purpose.ORDER, epoch, block).permutation(size)


def num_steps(num_samples: int, mini_batch: int) -> int:
    """R, the steps of an epoch: the least number with which steps hold about `mini_batch` samples."""
    return -(-num_samples // mini_batch)


def step_slice(blocks: DataBlocks, block: int, step: int, steps: int) -> tuple[int, int]:
    """Positions [start, stop) of a data block's order that step `step` of `steps` takes; may be empty.

    All positions of the block are taken once in an epoch. Blocks are out of phase: otherwise, blocks with
    fewer samples than there are steps would all give a sample to the same steps, and none to the others. The
    phases are multiples of the golden ratio, so any run of neighbouring blocks gives about the same number to
    every step.
    """
    size, phase = blocks.size(block), ((block * _GOLDEN) % 2**32 * steps) >> 32
    return (step * size + phase) // steps, ((step + 1) * size + phase) // steps


def step_samples(blocks: DataBlocks, step: int, steps: int) -> int:
    """Number of samples of step `step` of `steps`, over all data blocks."""
    spans = (step_slice(blocks, block, step, steps) for block in range(blocks.num_blocks))
    return sum(stop - start for start, stop in spans)


_GOLDEN = 2654435769
"""2**32 divided by the golden ratio."""


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
