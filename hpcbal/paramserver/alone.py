"""Train an app in one process, without servers: what synchronous training must equal, to rounding.

The same data blocks, orders, steps and random numbers as in a run with `consistency: sync`. So this is the
oracle of the engine, the peer of its overhead, and the way to try an app out.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hpcbal.errors import InputError
from hpcbal.paramserver.contract import (
    App,
    Batch,
    DataBlock,
    DataBlocks,
    IntArray,
    Slices,
    Table,
    Update,
    apply_update,
    checked_metrics,
    checked_needs,
    checked_updates,
    gather_batch,
    num_steps,
    order_of_block,
    rng_of_parameters,
    rng_of_state,
    scatter_state,
    step_slice,
    tables_of,
    whole_block,
)

ParameterBlocks = Callable[[Table], Sequence[IntArray]]
"""Cuts a table: for each of its parameter blocks the ids of the rows. Each row is in one block."""


def one_block(table: Table) -> Sequence[IntArray]:
    """The whole table as one parameter block."""
    return (np.arange(table.num_rows),)


class Alone:
    """An app that trains in this process.

    Attributes:
        values: parameters by table, shape (num_rows, num_columns).
        data_blocks: samples and the app's state of them.
        epoch: number of epochs that are done.
    """

    def __init__(
        self,
        app: App,
        *,
        mini_batch: int,
        seed: int = 0,
        num_data_blocks: int = 1,
        parameter_blocks: ParameterBlocks = one_block,
    ) -> None:
        """Read all samples, and make the initial parameters and states.

        Args:
            app: what to train.
            mini_batch: samples of a step, >= 1.
            seed: of the run, >= 0.
            num_data_blocks: 1 to the number of samples; part of what results depend on.
            parameter_blocks: how tables are cut. Results depend on it only where `App.initial` uses its
                `rng`.

        Raises:
            InputError: a number is out of range, or the tables are wrong.
            AppError: the app's updates do not fit its tables.
        """
        self._app, self._seed = app, seed
        if mini_batch < 1:
            raise InputError(f"mini_batch: got {mini_batch}, allowed: >= 1")
        self._tables = tables_of(app)
        self._blocks = DataBlocks(app.source.num_samples, num_data_blocks)
        self.epoch = 0
        self._steps = num_steps(self._blocks.num_samples, mini_batch)
        self._parameter_blocks = {name: parameter_blocks(table) for name, table in self._tables.items()}
        self.values: dict[str, NDArray[Any]] = {
            name: self._initial_values(table) for name, table in self._tables.items()
        }
        self.data_blocks = [self._data_block(number) for number in range(num_data_blocks)]
        for block in self.data_blocks:
            self._push(app.initial_updates(self._whole(block)) or {}, {})

    def train_epoch(self) -> None:
        """Take every sample once, in steps of about `mini_batch` samples."""
        orders = [
            order_of_block(self._seed, self.epoch, block, self._blocks.size(block))
            for block in range(self._blocks.num_blocks)
        ]
        for step in range(self._steps):
            self._train_step(step, orders)
        self.epoch += 1

    def evaluate(self) -> dict[str, float]:
        """The app's metrics with the present parameters."""
        sums: dict[str, float] = {}
        for block in self.data_blocks:
            batch = self._whole(block)
            _add(sums, self._app.objective(batch, self._pull(self._needs(batch))))
        for name, blocks in self._parameter_blocks.items():
            for rows in blocks:
                _add(sums, self._app.parameter_objective(name, self.values[name][rows]))
        return checked_metrics(self._app.metrics(sums))

    def _train_step(self, step: int, orders: Sequence[IntArray]) -> None:
        slices = self._slices(step, orders)
        if not any(len(numbers) for _, _, numbers in slices):
            return
        batch = gather_batch(slices, seed=self._seed, epoch=self.epoch)
        needs = self._needs(batch)
        updates = self._app.compute(batch, self._pull(needs))
        scatter_state(batch, slices)
        self._push(updates, needs)

    def _slices(self, step: int, orders: Sequence[IntArray]) -> Slices:
        slices = []
        for block, order in zip(self.data_blocks, orders, strict=True):
            start, stop = step_slice(self._blocks, block.number, step, self._steps)
            slices.append((block, start, order[start:stop]))
        return slices

    def _needs(self, batch: Batch) -> dict[str, IntArray]:
        return checked_needs(self._app.needs(batch), self._tables)

    def _pull(self, needs: Mapping[str, IntArray]) -> dict[str, NDArray[Any]]:
        """Rows of sparse tables are copies; dense tables are read where they are."""
        return {
            name: values[needs[name]] if name in needs else _read_only(values)
            for name, values in self.values.items()
        }

    def _push(self, updates: Mapping[str, Update | NDArray[Any]], needs: Mapping[str, IntArray]) -> None:
        for name, update in checked_updates(updates, self._tables, needs).items():
            apply_update(self._app, name, self.values[name], update.rows, update.deltas)

    def _initial_values(self, table: Table) -> NDArray[Any]:
        values = np.empty((table.num_rows, table.num_columns), table.dtype)
        for number, rows in enumerate(self._parameter_blocks[table.name]):
            rng = rng_of_parameters(self._seed, table.name, number)
            values[rows] = self._app.initial(table.name, rows, rng)
        return values

    def _data_block(self, number: int) -> DataBlock:
        columns = self._app.source.read(self._blocks.samples(number))
        state = self._app.initial_state(columns, rng_of_state(self._seed, number))
        return DataBlock(number, self._blocks.first(number), columns, state)

    def _whole(self, block: DataBlock) -> Batch:
        return whole_block(block, seed=self._seed, epoch=self.epoch)


def train_alone(app: App, num_epochs: int, **options: Any) -> tuple[Alone, list[dict[str, float]]]:
    """Train an app for some epochs.

    Args:
        app: what to train.
        num_epochs: >= 0.
        options: see `Alone`.

    Returns: the trained app with its tables, and the metrics of each epoch.
    """
    alone, metrics = Alone(app, **options), []
    for _ in range(num_epochs):
        alone.train_epoch()
        metrics.append(alone.evaluate())
    return alone, metrics


def _read_only(values: NDArray[Any]) -> NDArray[Any]:
    view = values.view()
    view.flags.writeable = False
    return view


def _add(sums: dict[str, float], terms: Mapping[str, float]) -> None:
    for name, term in terms.items():
        sums[name] = sums.get(name, 0.0) + float(term)
