"""Estimate a job's needs on its machines from a few of its samples ([PS] Sec. 4.3.3)."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from hpcbal.config import PsJobConfig
from hpcbal.paramserver.api.batch import Batch, DataBlock, DataBlocks, gather_batch, rng_of_state
from hpcbal.paramserver.api.checks import calling, checked_columns
from hpcbal.paramserver.api.columns import num_bytes_of
from hpcbal.paramserver.api.update import checked_needs, held_bytes
from hpcbal.paramserver.worker.several_blocks import ID_BYTES
from hpcbal.policies.grouping.memory import JobMemory
from hpcbal.runtime.jobs.loading import Cut, LoadedJob

MOST_SAMPLED = 256
"""Samples that are read."""

NUM_RUNS = 16
"""Runs of neighbours, spread over all samples: sets are often sorted."""

FEWER = 8
"""Every eighth sample shows how the number of rows grows with that of samples."""


@dataclass(frozen=True, slots=True)
class Sampled:
    """Sizes of samples and rows, from a few samples.

    Attributes:
        num_samples: that were read.
        sample_bytes: of a sample and the app's state of it, mean.
        row_bytes: by sparse table, of the rows that these samples need together.
        row_growth: n samples need n ** row_growth as many rows as one, 0 to 1; 1 if there are no sparse
            tables.
    """

    num_samples: int
    sample_bytes: float
    row_bytes: Mapping[str, float]
    row_growth: float


def sample_job(loaded: LoadedJob, seed: int) -> Sampled:
    """Read a few samples, and ask the app which rows they need.

    Args:
        loaded: its app and data.
        seed: of its first values.

    Raises:
        UserCodeError: the app or its dataset raises.
        AppError: they return something that they must not.
    """
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
    batch = gather_batch(parts, seed=seed, epoch=0)
    whole = DataBlock(0, 0, batch.columns, batch.state)
    few = gather_batch([(whole, 0, np.arange(0, count, FEWER))], seed=seed, epoch=0)
    row_bytes, few_bytes = _row_bytes(loaded, batch), sum(_row_bytes(loaded, few).values())
    growth = 1.0
    if few_bytes and few.num_samples < count:
        ratio = sum(row_bytes.values()) / few_bytes
        growth = min(1.0, max(0.0, math.log(ratio) / math.log(count / few.num_samples)))
    return Sampled(count, num_bytes / count, row_bytes, growth)


def _row_bytes(loaded: LoadedJob, batch: Batch) -> dict[str, float]:
    """Bytes of the rows that a batch needs, by sparse table."""
    with calling(loaded.app, "needs"):
        needs = checked_needs(loaded.app.needs(batch), dict(loaded.tables))
    return {name: float(len(ids) * loaded.tables[name].row_bytes) for name, ids in needs.items()}


MARGIN = 1.05
"""Estimates of what samples take are this much larger: jobs fail if their blocks do not fit."""

DENSE_COPIES = 3
"""Copies of a dense table at each worker: itself, an update of it, and an update that a server receives."""

ROW_COPIES = 4
"""Copies of pulled rows: as they come, in order, and their update in order of blocks, here and at servers."""


@dataclass(frozen=True, slots=True)
class Needs:
    """The needs of a job, as far as they are known before it runs.

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


def needs_of(loaded: LoadedJob, config: PsJobConfig, cut: Cut, seed: int) -> Needs:
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
