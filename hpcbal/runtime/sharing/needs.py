"""What a job will need on its machines, from a few of its samples ([PS] Sec. 4.3.3)."""

from __future__ import annotations

from dataclasses import dataclass

from hpcbal.config import SharedJobConfig
from hpcbal.paramserver.contract import DataBlocks, held_bytes
from hpcbal.paramserver.worker.several_blocks import ID_BYTES
from hpcbal.policies.grouping import JobMemory
from hpcbal.runtime.paramserver.cutting import Cut
from hpcbal.runtime.paramserver.loading import LoadedJob
from hpcbal.runtime.paramserver.sampling import sample_job

MARGIN = 1.05
"""Estimates of what samples take are this much larger: jobs fail if their blocks do not fit."""

DENSE_COPIES = 3
"""Of a dense table at each worker: itself, an update of it, and an update that a server receives."""

ROW_COPIES = 4
"""Of pulled rows: as they come, in order, and their update in order of blocks, here and at the server."""


@dataclass(frozen=True, slots=True)
class Needs:
    """What is known of a job before it runs.

    Attributes:
        memory: that it takes.
        row_growth: see `JobLoad`.
        sent_row_bytes: of the rows of sparse tables that all samples of a step would need together if tables
            were as large as need be, with the numbers of the rows, which are sent as well.
        most_row_bytes: of all rows of sparse tables, in the same way.
    """

    memory: JobMemory
    row_growth: float
    sent_row_bytes: float
    most_row_bytes: float


def needs_of(loaded: LoadedJob, config: SharedJobConfig, cut: Cut, seed: int) -> Needs:
    """Estimate what a job needs.

    Args:
        loaded: its app and data.
        config: of the job.
        cut: of its samples and tables.
        seed: of its first values.

    Raises:
        UserCodeError: the app or its dataset raises.
        AppError: they return something that they must not.
    """
    tables, sampled = loaded.tables, sample_job(loaded, seed)

    def rows_of(num_samples: int) -> float:
        """Bytes of the rows that so many samples need."""
        factor = (num_samples / sampled.num_samples) ** sampled.row_growth
        return sum(
            min(float(tables[name].num_bytes), factor * num_bytes)
            for name, num_bytes in sampled.row_bytes.items()
        )

    blocks = DataBlocks(loaded.num_samples, cut.data)
    largest_block = max(blocks.size(number) for number in range(cut.data))
    dense_bytes = sum(table.num_bytes for table in tables.values() if table.access == "dense")
    memory = JobMemory(
        input_bytes=MARGIN * sampled.sample_bytes * loaded.num_samples,
        model_bytes=held_bytes(loaded.parameter_bytes, config.staleness),
        step_bytes=ROW_COPIES * rows_of(config.mini_batch),
        # Objectives and first pushes of several blocks take what turns have, see `size_factor`.
        work_bytes=DENSE_COPIES * dense_bytes + ROW_COPIES * rows_of(largest_block),
        data_blocks=cut.data,
        parameter_blocks=sum(cut.parameters),
        batch_bytes=MARGIN * sampled.sample_bytes * min(config.mini_batch, loaded.num_samples),
    )
    factor = (config.mini_batch / sampled.num_samples) ** sampled.row_growth
    # A pull sends numbers and gets rows; a push sends both.
    with_ids = {name: 1 + ID_BYTES / tables[name].row_bytes for name in sampled.row_bytes}
    return Needs(
        memory,
        sampled.row_growth,
        sum(factor * num_bytes * with_ids[name] for name, num_bytes in sampled.row_bytes.items()),
        sum(tables[name].num_bytes * share for name, share in with_ids.items()),
    )
