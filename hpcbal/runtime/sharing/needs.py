"""What a job will need, from a few of its samples: memory ([PS] Sec. 4.3.3), and rows of sparse tables."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from hpcbal.config import SharedJobConfig
from hpcbal.paramserver.contract import (
    Batch,
    DataBlock,
    DataBlocks,
    IntArray,
    checked_columns,
    checked_needs,
    gather_batch,
    held_bytes,
    num_bytes_of,
    rng_of_state,
)
from hpcbal.paramserver.engine.user_app import calling
from hpcbal.policies.grouping import JobMemory
from hpcbal.runtime.paramserver.cutting import Cut
from hpcbal.runtime.paramserver.loading import LoadedJob

MOST_SAMPLED = 256
"""Samples that are read for the estimates."""

FEWER = 8
"""Every eighth of them shows how the number of rows grows with that of samples."""

NUM_RUNS = 16
"""Runs of neighbours that are sampled, spread over all samples: sets are often sorted."""

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
    """

    memory: JobMemory
    row_growth: float


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
    tables = loaded.tables
    batch, sample_bytes = _sampled(loaded, seed)
    count = batch.num_samples
    few = gather_batch([(_as_block(batch), 0, np.arange(0, count, FEWER))], seed=seed, epoch=0)
    rows = {name: len(ids) for name, ids in _needed(loaded, batch).items()}
    few_bytes = sum(len(ids) * tables[name].row_bytes for name, ids in _needed(loaded, few).items())
    row_bytes = sum(number * tables[name].row_bytes for name, number in rows.items())
    growth = 1.0
    if few_bytes and few.num_samples < count:
        growth = math.log(row_bytes / few_bytes) / math.log(count / few.num_samples)
        growth = min(1.0, max(0.0, growth))

    def rows_of(num_samples: int) -> float:
        """Bytes of the rows that so many samples need."""
        factor = (num_samples / count) ** growth
        return sum(
            min(tables[name].num_bytes, factor * number * tables[name].row_bytes)
            for name, number in rows.items()
        )

    blocks = DataBlocks(loaded.num_samples, cut.data)
    largest_block = max(blocks.size(number) for number in range(cut.data))
    dense_bytes = sum(table.num_bytes for table in tables.values() if table.access == "dense")
    memory = JobMemory(
        input_bytes=MARGIN * sample_bytes * loaded.num_samples,
        model_bytes=held_bytes(loaded.parameter_bytes, config.staleness),
        step_bytes=ROW_COPIES * rows_of(config.mini_batch),
        # The objective is computed block by block.
        work_bytes=DENSE_COPIES * dense_bytes + ROW_COPIES * rows_of(largest_block),
        data_blocks=cut.data,
        parameter_blocks=sum(cut.parameters),
    )
    return Needs(memory, growth)


def _sampled(loaded: LoadedJob, seed: int) -> tuple[Batch, float]:
    """A batch of samples from everywhere, and bytes of a sample with the app's state of it."""
    app, total = loaded.app, loaded.num_samples
    length = max(1, min(MOST_SAMPLED, total) // NUM_RUNS)
    starts = np.unique(np.linspace(0, total - length, NUM_RUNS).astype(np.int64))
    parts, num_bytes, count = [], 0, 0
    for number, start in enumerate(starts.tolist()):
        samples = np.arange(start, start + length)
        with calling(app, "source.read"):
            columns = loaded.source.read(samples)
        checked_columns("source.read", columns, length, least=1)
        with calling(app, "initial_state"):
            state = app.initial_state(columns, rng_of_state(seed, number))
        checked_columns("initial_state", state, length)
        num_bytes += num_bytes_of(columns) + num_bytes_of(state)
        count += length
        parts.append((DataBlock(number, start, columns, state), 0, np.arange(length)))
    return gather_batch(parts, seed=seed, epoch=0), num_bytes / count


def _as_block(batch: Batch) -> DataBlock:
    return DataBlock(0, 0, batch.columns, batch.state)


def _needed(loaded: LoadedJob, batch: Batch) -> Mapping[str, IntArray]:
    """Rows of sparse tables that a batch needs."""
    with calling(loaded.app, "needs"):
        return checked_needs(loaded.app.needs(batch), dict(loaded.tables))
