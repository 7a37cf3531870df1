"""Random numbers that are seeded by what they are for, so that results do not depend on ranks."""

from __future__ import annotations

import zlib
from enum import IntEnum

import numpy as np


class Purpose(IntEnum):
    """What random numbers are for; part of their seed."""

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
