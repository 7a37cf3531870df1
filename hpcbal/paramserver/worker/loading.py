"""A job as every executor knows it, and its blocks: made at the start, or loaded from a checkpoint."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from hpcbal.errors import CheckpointError
from hpcbal.paramserver.api.app import App, tables_of
from hpcbal.paramserver.api.batch import (
    DataBlock,
    DataBlocks,
    num_steps,
    rng_of_parameters,
    rng_of_state,
    step_samples,
)
from hpcbal.paramserver.api.checks import calling, checked_columns, checked_initial
from hpcbal.paramserver.api.columns import Columns, Ragged
from hpcbal.paramserver.api.update import Table
from hpcbal.paramserver.master.messages import What
from hpcbal.paramserver.store.layout import Layout
from hpcbal.paramserver.worker.samples import Cursor


@dataclass(frozen=True, slots=True)
class EmulatedMachine:
    """How fast an executor is to be.

    Attributes:
        seconds_per_sample: that computing takes at speed 1; None: computing is not paced.
        speed: > 0.
        bytes_per_s: of its link in each direction; None: the link is not paced.
    """

    seconds_per_sample: float | None = None
    speed: float = 1.0
    bytes_per_s: float | None = None


@dataclass(slots=True)
class JobSetup:
    """A job, the same on every executor.

    Attributes:
        app: this executor's instance.
        seed: of the run.
        mini_batch: samples of a step, or in `async` of a turn.
        cut: how samples are cut into data blocks.
        layout: how tables are cut into parameter blocks.
        staleness: steps that a worker may be ahead of the slowest data block; None: `async`, no steps at all.
        memory_bytes: most bytes of message buffers; None: no limit.
    """

    app: App
    seed: int
    mini_batch: int
    cut: DataBlocks
    layout: Layout
    staleness: int | None = 0
    memory_bytes: int | None = None
    tables: dict[str, Table] = field(init=False)
    steps: int = field(init=False)
    _step_samples: dict[int, int] = field(init=False, default_factory=dict)

    def __post_init__(self) -> None:
        self.tables = tables_of(self.app)
        self.steps = num_steps(self.cut.num_samples, self.mini_batch)

    @property
    def is_async(self) -> bool:
        """Whether turns follow no steps."""
        return self.staleness is None

    def samples_of_step(self, step: int) -> int:
        """Samples of a step of an epoch, over all workers."""
        if step not in self._step_samples:
            self._step_samples[step] = step_samples(self.cut, step, self.steps)
        return self._step_samples[step]


Arrays = Mapping[str, NDArray[Any]]

VALUES, CURSOR, STATE, RAGGED_VALUES, OFFSETS = "values", "cursor", "state", "values", "offsets"


class Checkpoints(Protocol):
    """Where executors save what they own; all updates are applied when they do."""

    def save(self, number: int, blocks: Mapping[What, Mapping[int, Arrays]]) -> None:
        """Write this executor's part of checkpoint `number`: arrays by name of each block."""

    def load(self, number: int, what: What, blocks: Iterable[int]) -> Mapping[int, Arrays]:
        """Read blocks of checkpoint `number`, whoever saved them."""


def fill_first(job: JobSetup, block: int, values: NDArray[Any]) -> None:
    """Write the app's first values of a parameter block into `values`, shape (num_rows, num_columns)."""
    table = job.layout.table_of(block)
    rows = job.layout.rows_of(block)
    order = np.argsort(rows)
    rng = rng_of_parameters(job.seed, table.name, block - job.layout.blocks_of(table.name).start)
    with calling(job.app, f"initial({table.name!r})"):
        values[order] = checked_initial(table, job.app.initial(table.name, rows[order], rng), len(rows))


def first_data(job: JobSetup, block: int) -> DataBlock:
    """Read a data block, and let the app make its first state of it."""
    columns = _columns(job, block)
    with calling(job.app, "initial_state"):
        state = job.app.initial_state(columns, rng_of_state(job.seed, block))
    checked_columns("initial_state", state, job.cut.size(block))
    return DataBlock(block, job.cut.first(block), columns, state)


def _columns(job: JobSetup, block: int) -> Columns:
    with calling(job.app, "source.read"):
        columns = job.app.source.read(job.cut.samples(block))
    return checked_columns("source.read", columns, job.cut.size(block), least=1)


def fill_saved(job: JobSetup, block: int, arrays: Arrays, values: NDArray[Any]) -> None:
    """Write the values of a parameter block in a checkpoint into `values`, shape (num_rows, num_columns).

    Raises:
        CheckpointError: they have another shape or type.
    """
    saved = arrays[VALUES]
    if saved.shape != values.shape or saved.dtype != values.dtype:
        raise CheckpointError(
            f"block {block} of table {job.layout.table_of(block).name!r}: the checkpoint has shape "
            f"{saved.shape} of {saved.dtype}, expected {values.shape} of {values.dtype}"
        )
    values[:] = saved


def data_arrays(block: DataBlock, cursor: Cursor) -> dict[str, NDArray[Any]]:
    """Return the saved arrays of a data block: its cursor and state; samples are read again.

    No objective is under way then, and one that was given up is computed again, of all blocks.
    """
    arrays = {CURSOR: np.array([cursor.epoch, cursor.at], np.int64)}
    for name, column in block.state.items():
        if isinstance(column, Ragged):
            arrays[f"{STATE}/{name}/{RAGGED_VALUES}"] = column.values
            arrays[f"{STATE}/{name}/{OFFSETS}"] = column.offsets
        else:
            arrays[f"{STATE}/{name}"] = column
    return arrays


def saved_data(job: JobSetup, block: int, arrays: Arrays) -> tuple[DataBlock, Cursor]:
    """A data block from its arrays in a checkpoint."""
    cursor = Cursor(*arrays[CURSOR].tolist()[:2])  # older checkpoints have one number more
    state: dict[str, Any] = {}
    for path, array in arrays.items():
        if not path.startswith(f"{STATE}/"):
            continue
        name, _, part = path.removeprefix(f"{STATE}/").partition("/")
        if part == RAGGED_VALUES:
            offsets = arrays[f"{STATE}/{name}/{OFFSETS}"]
            state[name] = Ragged(np.ascontiguousarray(array), np.ascontiguousarray(offsets))
        elif not part:
            state[name] = np.ascontiguousarray(array)
    return DataBlock(block, job.cut.first(block), _columns(job, block), state), cursor
