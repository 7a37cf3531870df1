"""Parameter blocks that always stay together, and the bytes of a turn that concern them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from hpcbal.paramserver.api.columns import IntArray
from hpcbal.simulator.paramserver.job import ServingJob

ID_BYTES = 8
"""Bytes of the number of a row in a frame."""


@dataclass(frozen=True, slots=True)
class TurnBytes:
    """Bytes of a turn by unit, without headers.

    Attributes:
        ids: numbers of rows; 0 where tables are pulled whole.
        values: that a pull answers.
        deltas: that a push carries, with numbers of rows.
    """

    ids: IntArray
    values: IntArray
    deltas: IntArray


class Units:
    """The blocks, as hosts and clients of the simulation know them.

    While nothing moves, all dense blocks of an owner are one unit, and so are all sparse ones: they are asked
    for and served together. So an epoch takes fewer events, and as much time. If blocks may move, each is a
    unit of its own.

    Args:
        job: what is simulated.
        owners: rank of each parameter block at the start.
        may_move: whether blocks may change their owners.

    Attributes:
        members: blocks of each unit.
        owners: rank of each unit at the start.
        numbers: of all units.
        sparse: those of which some rows are pulled.
        whole_bytes: bytes of all values of each unit.
    """

    def __init__(self, job: ServingJob, owners: Sequence[int], may_move: bool) -> None:
        self._job = job
        layout = job.layout
        groups: dict[tuple[object, ...], list[int]] = {}
        for block, owner in enumerate(owners):
            access = layout.table_of(block).access
            groups.setdefault((block,) if may_move else (owner, access), []).append(block)
        self.members = list(groups.values())
        first = [blocks[0] for blocks in self.members]
        self.owners = [owners[block] for block in first]
        self._is_dense = [layout.table_of(block).access == "dense" for block in first]
        self.numbers = np.arange(len(first))
        self.sparse = np.flatnonzero(~np.array(self._is_dense, np.bool_))
        # Rows of each table in each unit, shape (units, tables).
        self._rows = np.zeros((len(self.members), len(job.tables)), np.int64)
        index = {table.name: i for i, table in enumerate(job.tables)}
        for unit, blocks in enumerate(self.members):
            for block in blocks:
                table, rows = layout.shape_of(block)
                self._rows[unit, index[table.name]] += rows
        row_bytes = np.array([table.row_bytes for table in job.tables])
        self.whole_bytes: IntArray = self._rows @ row_bytes
        self._of_samples: dict[int, TurnBytes] = {}

    def entries(self, units: Iterable[int]) -> int:
        """Entries of a frame about units: one for each of their blocks."""
        return sum(len(self.members[unit]) for unit in units)

    def parted(self, units: Iterable[int]) -> Iterator[tuple[list[int], bool]]:
        """Units that are pulled whole, and others, if there are any; and whether they are the former."""
        found = list(units)
        for is_dense in (True, False):
            some = [unit for unit in found if self._is_dense[unit] == is_dense]
            if some:
                yield some, is_dense

    def turn_bytes(self, num_samples: int) -> TurnBytes:
        """Bytes of a turn of so many samples."""
        found = self._of_samples.get(num_samples)
        if found is None:
            job = self._job
            share = np.array([job.rows_needed(table, num_samples) / table.num_rows for table in job.tables])
            row_bytes = np.array([table.row_bytes for table in job.tables])
            is_sparse = np.array([table.access == "sparse" for table in job.tables])
            rows = self._rows * share
            ids = np.rint((rows * is_sparse).sum(axis=1)).astype(np.int64) * ID_BYTES
            values = np.rint(rows @ row_bytes).astype(np.int64)
            deltas = ids + np.rint(job.push_share * values).astype(np.int64)
            found = self._of_samples[num_samples] = TurnBytes(ids, values, deltas)
        return found

    def first_bytes(self, blocks: Sequence[int]) -> TurnBytes:
        """Bytes of what data blocks push together before the first epoch."""
        job = self._job
        per_row = [job.first_bytes(table, blocks) / table.num_rows for table in job.tables]
        deltas = np.rint(self._rows @ np.array(per_row)).astype(np.int64)
        return TurnBytes(np.zeros_like(deltas), np.zeros_like(deltas), deltas)
