"""Into how many blocks samples and tables are cut: decided at the first start, kept by the checkpoint."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from hpcbal.config import PsJobConfig
from hpcbal.errors import InputError, OutputError
from hpcbal.paramserver.contract import Table
from hpcbal.runtime.paramserver.checkpoint import SavedJob
from hpcbal.runtime.paramserver.loading import LoadedJob

BLOCKS_PER_EXECUTOR = 8
"""Blocks of each sort for each executor of the first start: shares can be even to about an eighth."""


@dataclass(frozen=True, slots=True)
class Cut:
    """Numbers of blocks.

    Attributes:
        data: blocks of samples, >= 1.
        parameters: blocks of each table, in the order of the app's tables; each >= 1.
    """

    data: int
    parameters: tuple[int, ...]

    @classmethod
    def of_saved(cls, saved: SavedJob) -> Cut:
        """The cut of a job with a checkpoint."""
        return cls(int(saved.cut["data"][0]), tuple(map(int, saved.cut["parameters"])))

    def plain(self) -> dict[str, list[int]]:
        """For a checkpoint."""
        return {"data": [self.data], "parameters": list(self.parameters)}


def first_cut(config: PsJobConfig, loaded: LoadedJob, num_executors: int) -> Cut:
    """The cut of a job that starts.

    Raises:
        InputError: if the file asks for more blocks than there are samples or rows, or fewer than tables.
    """
    most = BLOCKS_PER_EXECUTOR * num_executors
    data = config.blocks.data
    if data != "auto" and data > loaded.num_samples:
        raise InputError(
            f"blocks.data: got {data}, allowed: auto, or at most the number of samples ({loaded.num_samples})"
        )
    num_data = min(most, loaded.num_samples) if data == "auto" else data
    tables = list(loaded.tables.values())
    parameters, num_rows = config.blocks.parameters, sum(table.num_rows for table in tables)
    if parameters != "auto" and not len(tables) <= parameters <= num_rows:
        raise InputError(
            f"blocks.parameters: got {parameters}, allowed: auto, or {len(tables)} (the app's tables) to "
            f"{num_rows} (their rows)"
        )
    total = max(most, len(tables)) if parameters == "auto" else parameters
    return Cut(num_data, shares_of_tables(tables, min(total, num_rows)))


def shares_of_tables(tables: Sequence[Table], num_blocks: int) -> tuple[int, ...]:
    """Blocks for tables in proportion to their bytes, at least one each and no more than rows.

    Args:
        tables: at least one.
        num_blocks: in total, from the number of tables to that of rows.
    """
    shares = [1] * len(tables)
    for _ in range(num_blocks - len(tables)):
        open_tables = [i for i, table in enumerate(tables) if shares[i] < table.num_rows]
        shares[max(open_tables, key=lambda i: (tables[i].num_bytes / shares[i], -i))] += 1
    return tuple(shares)


def check_saved(saved: SavedJob, fingerprint: str, job: Path) -> None:
    """Raise OutputError if a checkpoint is of other data or tables."""
    if saved.fingerprint != fingerprint:
        raise OutputError(
            f"{job}: the checkpoint is of other data, or of other tables; restore them, or "
            "choose another directory with --output"
        )
