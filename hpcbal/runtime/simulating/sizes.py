"""A parameter-server job as far as its speed goes: from its file, its app, its data and an earlier run."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from hpcbal.config import PsJobConfig
from hpcbal.errors import UserCodeError
from hpcbal.paramserver.api.app import has_default_update
from hpcbal.paramserver.api.batch import DataBlock, DataBlocks, gather_batch, whole_block
from hpcbal.paramserver.api.checks import calling
from hpcbal.paramserver.api.columns import IntArray, num_bytes_of
from hpcbal.paramserver.api.update import AppError, checked_needs, checked_updates
from hpcbal.paramserver.store.layout import Layout
from hpcbal.paramserver.worker.loading import JobSetup, first_data
from hpcbal.paramserver.worker.several_blocks import ID_BYTES, UpdateSum, bytes_of
from hpcbal.planning.paramserver import MeasuredEpoch
from hpcbal.runtime.jobs.loading import Cut, LoadedJob
from hpcbal.simulator.paramserver.job import Points, ServingJob

LEAST_READ, DRAWS = 2048, 8
"""Samples that are read at least, and turns of each size of which the mean is taken: samples are unlike."""

LEAST_PUSH_SHARE = 1e-3
"""Smallest push as a share of the pull, whatever was measured."""


@dataclass(frozen=True, slots=True)
class TurnSizes:
    """Needs of turns, found by trying some.

    Attributes:
        rows: of each sparse table, points (samples of a turn, rows).
        first_push: of each table, bytes of the first push of some data blocks.
        first_growth: see `ServingJob`.
        sample_bytes: of a sample and its state.
    """

    rows: Mapping[str, Points]
    first_push: Mapping[str, Sequence[float]]
    first_growth: float | None
    sample_bytes: float


def serving_job(
    config: PsJobConfig, seed: int, loaded: LoadedJob, cut: Cut, measured: MeasuredEpoch | None
) -> ServingJob:
    """The job that a file describes, for the simulator.

    Rows of sparse tables are those that the app needs for turns of several sizes, the largest that of a
    single worker. First pushes are those of some blocks. Pushes of turns are as large as pulls, unless an
    earlier run has measured how large they are.

    Args:
        config: of the job.
        seed: of its first values and random draws.
        loaded: its app and its data.
        cut: numbers of blocks.
        measured: by an earlier run; None: there is none.

    Raises:
        UserCodeError: the app or the dataset raises, or the app asks for rows that do not exist.
    """
    blocks = DataBlocks(loaded.num_samples, cut.data)
    layout = Layout(tuple(loaded.tables.values()), cut.parameters)
    job = JobSetup(loaded.app, seed, config.mini_batch, blocks, layout, staleness=config.staleness)
    sizes = _sizes(job, min(loaded.num_samples, max(config.mini_batch, blocks.size(0))))
    serving = ServingJob(
        loaded.num_samples,
        cut.data,
        config.mini_batch,
        config.staleness,
        layout.tables,
        cut.parameters,
        max_epochs=config.stop.max_epochs,
        objective_every=config.objective.every,
        turn_rows=sizes.rows,
        first_push=sizes.first_push,
        first_growth=sizes.first_growth,
        sample_bytes=sizes.sample_bytes,
        seed=seed,
    )
    if measured is None:
        return serving
    measured_samples = turn_samples(config, loaded.num_samples, measured.num_workers)
    return replace(serving, push_share=_push_share(serving, measured_samples, measured.turn_bytes))


def turn_samples(config: PsJobConfig, num_samples: int, num_workers: int) -> int:
    """Samples of one worker's turn, about."""
    if config.staleness is None:
        return min(config.mini_batch, num_samples)
    return max(1, min(config.mini_batch, num_samples) // num_workers)


def _sizes(job: JobSetup, num_samples: int) -> TurnSizes:
    """Read some blocks all over the data, and ask the app what turns of 1, 2, 4, ... samples need.

    Args:
        num_samples: of the largest turn.
    """
    cut = job.cut
    most = min(cut.num_samples, max(num_samples, LEAST_READ))
    num_blocks = min(cut.num_blocks, -(-most * cut.num_blocks // cut.num_samples) + 1)
    blocks = [first_data(job, int(i * cut.num_blocks // num_blocks)) for i in range(num_blocks)]
    num_read = sum(cut.size(block.number) for block in blocks)
    num_bytes = sum(num_bytes_of(block.columns) + num_bytes_of(block.state) for block in blocks)
    rows: dict[str, list[tuple[float, float]]] = {}
    if any(table.access == "sparse" for table in job.tables.values()):
        rng = np.random.default_rng(job.seed)
        for size in [*(2**i for i in range(num_samples.bit_length()) if 2**i < num_samples), num_samples]:
            drawn = [_rows_needed(job, blocks, rng.permutation(num_read)[:size]) for _ in range(DRAWS)]
            for name in drawn[0]:
                points = rows.setdefault(name, [])
                mean = statistics.mean(each[name] for each in drawn)
                points.append((float(size), max(mean, points[-1][1] if points else 0.0)))
    return TurnSizes(rows, *_first_push(job, blocks), num_bytes / num_read)


def _first_push(job: JobSetup, blocks: Sequence[DataBlock]) -> tuple[dict[str, list[float]], float | None]:
    """Bytes that each of some data blocks pushes to each table before the first epoch; and by which power of
    their number it becomes more, see `ServingJob.first_growth`."""
    found: dict[str, list[float]] = {}
    total, alone = UpdateSum(math.inf), []
    for index, block in enumerate(blocks):
        try:
            with calling(job.app, "initial_updates"):
                updates = job.app.initial_updates(whole_block(block, seed=job.seed, epoch=0))
                checked = checked_updates(updates or {}, job.tables, {})
        except AppError as error:
            raise UserCodeError(f"{type(job.app).__name__}: {error}") from error
        for name, update in checked.items():
            found.setdefault(name, [0.0] * len(blocks))[index] = float(bytes_of({name: update}))
        if checked:
            alone.append(bytes_of(checked))
            total.add(checked)
    if not alone or not has_default_update(job.app):
        return found, None
    mean = statistics.mean(alone)
    if len(alone) == 1 or not mean:
        return found, 1.0
    growth = math.log(bytes_of(total.take()) / mean) / math.log(len(alone))
    return found, min(1.0, max(0.0, growth))


def _rows_needed(job: JobSetup, blocks: Sequence[DataBlock], drawn: IntArray) -> dict[str, int]:
    """Rows of sparse tables that a turn needs.

    Args:
        drawn: numbers of its samples, counted over all these blocks.
    """
    slices, first = [], 0
    for block in blocks:
        numbers = np.sort(drawn) - first
        size = job.cut.size(block.number)
        slices.append((block, 0, numbers[(numbers >= 0) & (numbers < size)]))
        first += size
    batch = gather_batch(slices, seed=job.seed, epoch=0)
    try:
        with calling(job.app, "needs"):
            needs = checked_needs(job.app.needs(batch), job.tables)
    except AppError as error:
        raise UserCodeError(f"{type(job.app).__name__}: {error}") from error
    return {name: len(ids) for name, ids in needs.items()}


def _push_share(job: ServingJob, num_samples: int, turn_bytes: float) -> float:
    """Bytes of deltas over bytes of values, so that a turn has as many bytes as were measured."""
    values = ids = 0.0
    for table in job.tables:
        rows = job.rows_needed(table, num_samples)
        values += rows * table.row_bytes
        ids += rows * ID_BYTES if table.access == "sparse" else 0.0
    return max(LEAST_PUSH_SHARE, (turn_bytes - values - 2 * ids) / values) if values else 1.0
