"""How much memory a job will need, from a few of its samples ([PS] Sec. 4.3.3)."""

from __future__ import annotations

from hpcbal.config import SharedJobConfig
from hpcbal.paramserver.contract import (
    DataBlock,
    DataBlocks,
    checked_columns,
    checked_needs,
    num_bytes_of,
    rng_of_state,
    whole_block,
)
from hpcbal.paramserver.engine.user_app import calling
from hpcbal.policies.grouping import JobMemory
from hpcbal.runtime.paramserver.cutting import Cut
from hpcbal.runtime.paramserver.loading import LoadedJob

MOST_SAMPLED = 256
"""Samples that are read for the estimate."""

DENSE_COPIES = 3
"""Of a dense table at each worker: itself, an update of it, and an update that a server receives."""

ROW_COPIES = 4
"""Of pulled rows: as they come, in order, and their update in order of blocks, here and at the server."""


def memory_of(loaded: LoadedJob, config: SharedJobConfig, cut: Cut, seed: int) -> JobMemory:
    """Estimate what a job keeps in memory.

    Args:
        loaded: its app and data.
        config: of the job.
        cut: of its samples and tables.
        seed: of its first values.

    Raises:
        UserCodeError: the app or its dataset raises.
        AppError: they return something that they must not.
    """
    app = loaded.app
    blocks = DataBlocks(loaded.num_samples, cut.data)
    some = blocks.samples(0)[:MOST_SAMPLED]
    with calling(app, "source.read"):
        columns = checked_columns("source.read", loaded.source.read(some), len(some), least=1)
    with calling(app, "initial_state"):
        state = app.initial_state(columns, rng_of_state(seed, 0))
    checked_columns("initial_state", state, len(some))
    batch = whole_block(DataBlock(0, 0, columns, state), seed=seed, epoch=0)
    with calling(app, "needs"):
        needs = checked_needs(app.needs(batch), dict(loaded.tables))
    tables = loaded.tables.values()

    def row_bytes(num_samples: int) -> float:
        """Of the rows that so many samples need; more samples share more of them."""
        return sum(
            min(
                loaded.tables[name].num_bytes,
                len(ids) * loaded.tables[name].row_bytes * num_samples / len(some),
            )
            for name, ids in needs.items()
        )

    dense_bytes = sum(table.num_bytes for table in tables if table.access == "dense")
    largest_block = max(blocks.size(number) for number in range(cut.data))
    return JobMemory(
        input_bytes=(num_bytes_of(columns) + num_bytes_of(state)) * loaded.num_samples / len(some),
        model_bytes=float(loaded.parameter_bytes),
        step_bytes=ROW_COPIES * row_bytes(config.mini_batch),
        # The objective is computed block by block.
        work_bytes=DENSE_COPIES * dense_bytes + ROW_COPIES * row_bytes(largest_block),
        data_blocks=cut.data,
        parameter_blocks=sum(cut.parameters),
    )
