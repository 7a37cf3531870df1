"""Data blocks: how samples are cut into them, in what order they are taken, and which ones a step holds.

None of this depends on ranks. So a data block may move between two steps, and steps hold the same samples.
"""

from __future__ import annotations

import zlib
from dataclasses import dataclass
from enum import IntEnum

import numpy as np

from hpcbal.errors import InputError
from hpcbal.paramserver.api.columns import IntArray


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
