"""Which rank owns which parameter block: as the master knows it, and as a rank has heard of it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import numpy.typing as npt

from hpcbal.errors import HpcbalError
from hpcbal.paramserver.contract import IntArray


class Ownership:
    """The owner of each block.

    Attributes:
        owners: rank of each block, shape (num_blocks,).
        versions: how often each block has moved, shape (num_blocks,).

    Args:
        owners: at first.
    """

    def __init__(self, owners: npt.ArrayLike) -> None:
        self.owners = np.array(owners, np.int64)
        self.versions = np.zeros(len(self.owners), np.int64)

    @property
    def num_blocks(self) -> int:
        return len(self.owners)

    def blocks_of(self, rank: int) -> IntArray:
        """The blocks of a rank, ascending."""
        return np.flatnonzero(self.owners == rank)

    def change(self, blocks: Sequence[int] | IntArray, owner: int, version: int | None = None) -> IntArray:
        """Note that blocks have a new owner.

        Args:
            version: number of the blocks' move; news that is no newer than what is known changes nothing.
                None: news comes in order, so this is the next move.

        Returns: the blocks whose owner is new.
        """
        changed = np.asarray(blocks, np.int64)
        if version is None:
            self.versions[changed] += 1
        else:
            changed = changed[self.versions[changed] < version]
            self.versions[changed] = version
        self.owners[changed] = owner
        return changed

    def parts(self, blocks: IntArray, max_blocks: int | None = None) -> Iterator[tuple[int, IntArray]]:
        """Blocks by their owners: (owner, its blocks in the given order), by owner.

        Args:
            max_blocks: most blocks of a part; None: no limit.
        """
        owner_of = self.owners[blocks]
        for owner in np.unique(owner_of).tolist():
            own = blocks[owner_of == owner]
            size = max_blocks or len(own)
            for start in range(0, len(own), size):
                yield owner, own[start : start + size]


def dealt_out(num_blocks: int, owners: Sequence[int]) -> tuple[int, ...]:
    """Blocks for owners in runs of neighbours, as even as possible: the owner of each block."""
    return tuple(owners[block * len(owners) // num_blocks] for block in range(num_blocks))


def deal_blocks(bytes_of_tables: Sequence[Sequence[int]], ranks: Sequence[int]) -> list[int]:
    """Deal the blocks of tables to ranks: evenly by bytes, and each table evenly, too.

    Each rank gets neighbours of each table, so few messages carry them. Tables are used in unlike ways, and a
    rank that owned a whole table would serve all of its use.

    Args:
        bytes_of_tables: bytes of each block of each table, nearly equal within a table.
        ranks: at least one.

    Returns: the rank of each block, tables one after the other. Shares of each table differ by at most one
        block, and shares of all by at most the largest block.

    Raises:
        HpcbalError: there is no rank.
    """
    if not ranks:
        raise HpcbalError("parameter blocks need at least one rank that owns them, got none")
    load = dict.fromkeys(ranks, 0)
    owners: list[int] = []
    for sizes in bytes_of_tables:
        share, left = divmod(len(sizes), len(ranks))
        # Ties go to the first ranks, as everywhere.
        lucky = set(sorted(ranks, key=lambda rank: load[rank])[:left])
        dealt = [rank for rank in ranks for _ in range(share + (rank in lucky))]
        for rank, num_bytes in zip(dealt, sizes, strict=True):
            load[rank] += num_bytes
        owners += dealt
    return owners
