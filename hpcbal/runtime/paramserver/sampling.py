"""What a few samples of a job say of all of them: their size, and the rows of sparse tables they need."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from hpcbal.paramserver.contract import (
    Batch,
    DataBlock,
    calling,
    checked_columns,
    checked_needs,
    gather_batch,
    num_bytes_of,
    rng_of_state,
)
from hpcbal.runtime.paramserver.loading import LoadedJob

MOST_SAMPLED = 256
"""Samples that are read."""

NUM_RUNS = 16
"""Runs of neighbours, spread over all samples: sets are often sorted."""

FEWER = 8
"""Every eighth sample shows how the number of rows grows with that of samples."""


@dataclass(frozen=True, slots=True)
class Sampled:
    """What was found.

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
