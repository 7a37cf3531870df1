"""How the rows of all tables are cut into parameter blocks, and which rank owns which block."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from hpcbal.errors import HpcbalError
from hpcbal.paramserver.api.columns import IntArray
from hpcbal.paramserver.api.update import Table

MAX_ROWS = 1 << 31
"""Most rows of a table: products of two row numbers must fit 63 bits."""

_GOLDEN = (math.sqrt(5) - 1) / 2


class Layout:
    """Blocks 0..num_blocks-1; each holds neighbouring positions of one table.

    The position of a row of a dense table is its id. Rows of a sparse table are spread first, so that ids
    that are used often do not meet in one block.

    Args:
        tables: in order.
        blocks_per_table: number of blocks of each, 1 to its number of rows. Blocks of a table differ by at
            most one row.

    Raises:
        HpcbalError: a table is cut into no blocks, or more than it has rows, or has too many rows.
    """

    def __init__(self, tables: Sequence[Table], blocks_per_table: Sequence[int]) -> None:
        self.tables = tuple(tables)
        self._table = {table.name: table for table in tables}
        self._first: dict[str, int] = {}
        self._count: dict[str, int] = {}
        self.num_blocks = 0
        for table, count in zip(tables, blocks_per_table, strict=True):
            if not 1 <= count <= table.num_rows <= MAX_ROWS:
                raise HpcbalError(
                    f"table {table.name!r}: {table.num_rows} rows in {count} blocks, allowed: a row in each "
                    f"block at least, and at most {MAX_ROWS} rows"
                )
            self._first[table.name], self._count[table.name] = self.num_blocks, count
            self.num_blocks += count
        self._bounds = {
            t.name: np.arange(n + 1) * t.num_rows // n for t, n in zip(tables, blocks_per_table, strict=True)
        }
        self._shapes: list[tuple[Table, int]] = []
        self._spans: list[tuple[int, int]] = []
        for table in tables:
            bounds = self._bounds[table.name].tolist()
            self._spans += pairwise(bounds)
            self._shapes += [(table, stop - start) for start, stop in pairwise(bounds)]
        self._factor = {table.name: _factor(table.num_rows) for table in tables if table.access == "sparse"}

    def table(self, name: str) -> Table:
        return self._table[name]

    def blocks_of(self, name: str) -> range:
        """Blocks of a table."""
        first = self._first[name]
        return range(first, first + self._count[name])

    def table_of(self, block: int) -> Table:
        """The table that a block belongs to."""
        return self._shapes[block][0]

    def shape_of(self, block: int) -> tuple[Table, int]:
        """A block's table, and its number of rows."""
        return self._shapes[block]

    def rows_span(self, block: int) -> tuple[int, int]:
        """Positions [start, stop) of a block; of a dense table, its rows."""
        return self._spans[block]

    def rows_of(self, block: int) -> IntArray:
        """Ids of a block's rows, in order of their places."""
        start, stop = self.rows_span(block)
        table = self.table_of(block)
        positions = np.arange(start, stop)
        if table.access == "dense":
            return positions
        return positions * pow(self._factor[table.name], -1, table.num_rows) % table.num_rows

    def locate(self, name: str, ids: IntArray) -> tuple[IntArray, IntArray]:
        """The block of each row, and its place within the block."""
        table = self._table[name]
        positions = ids if table.access == "dense" else ids * self._factor[name] % table.num_rows
        # Block i begins at position i * num_rows // count. In place, because fresh memory costs more.
        count = self._count[name]
        index = positions + 1
        index *= count
        index -= 1
        index //= table.num_rows
        places = positions - self._bounds[name][index]
        index += self._first[name]
        return index, places


def _factor(num_rows: int) -> int:
    """A multiplier that permutes the rows of a table, and sends neighbours far apart.

    Source: D. E. Knuth, "The Art of Computer Programming", vol. 3, Sec. 6.4, on Fibonacci hashing.
    """
    factor = max(1, round(_GOLDEN * num_rows))
    while math.gcd(factor, num_rows) != 1:
        factor += 1
    return factor


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
