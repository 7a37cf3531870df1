"""Which rank owns which parameter block: as the master knows it, and as a rank has heard of it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import numpy.typing as npt

from hpcbal.paramserver.api import IntArray


class Ownership:
    """The owner of each block.

    Attributes:
        owners: rank of each block, shape (num_blocks,).

    Args:
        owners: at first.
    """

    def __init__(self, owners: npt.ArrayLike) -> None:
        self.owners = np.array(owners, np.int64)

    @property
    def num_blocks(self) -> int:
        return len(self.owners)

    def change(self, blocks: Sequence[int], owner: int) -> None:
        """Note that blocks have a new owner. Late news does no harm: who has owned a block forwards."""
        self.owners[list(blocks)] = owner

    def parts(
        self, blocks: IntArray, rank: int, max_blocks: int | None = None
    ) -> Iterator[tuple[int, IntArray]]:
        """Blocks by their owners: (owner, its blocks in the given order).

        A rank that owns blocks as well begins with the next owner above itself and goes round, so that
        workers that begin together do not all send to one owner. Others ask in ascending order: there,
        workers that are served first go on first, and push while the others still pull.

        Args:
            rank: that asks.
            max_blocks: most blocks of a part; None: no limit.
        """
        owner_of = self.owners[blocks]
        owners = sorted(set(owner_of.tolist()))
        if rank in owners:
            next_one = owners.index(rank) + 1
            owners = owners[next_one:] + owners[:next_one]
        for owner in owners:
            own = blocks if len(owners) == 1 else blocks[owner_of == owner]
            size = max_blocks or len(own)
            for start in range(0, len(own), size):
                yield owner, own[start : start + size]


def dealt_out(num_blocks: int, owners: Sequence[int]) -> tuple[int, ...]:
    """Blocks for owners in runs of neighbours, as even as possible: the owner of each block."""
    return tuple(owners[block * len(owners) // num_blocks] for block in range(num_blocks))


def dealt_out_by_table(blocks_of_tables: Sequence[int], owners: Sequence[int]) -> tuple[int, ...]:
    """Parameter blocks for owners: every table as evenly as possible, in runs of neighbours.

    So a table that every turn pulls whole is spread over all owners, however many blocks other tables have.
    Blocks that are left of a table go to the owners with the fewest so far.

    Args:
        blocks_of_tables: number of blocks of each table, in the order of the tables.
        owners: at least one.

    Returns: the owner of each block, table by table.
    """
    dealt: list[int] = []
    totals = dict.fromkeys(owners, 0)
    for count in blocks_of_tables:
        each, left = divmod(count, len(owners))
        fewest = set(sorted(owners, key=lambda owner: totals[owner])[:left])
        for owner in owners:
            own = each + (owner in fewest)
            totals[owner] += own
            dealt += [owner] * own
    return tuple(dealt)
