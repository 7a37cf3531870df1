"""Train an app in one process, without servers: what synchronous training must equal, to rounding.

The same worker as in a run with `consistency: sync`, whose pulls and pushes are reads and writes. So this is
the peer of the engine's overhead, what its servers are compared with, and the way to try an app out.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hpcbal.comm.channel import Message
from hpcbal.errors import InputError
from hpcbal.paramserver.api.app import App, apply_update, checked_metrics, tables_of
from hpcbal.paramserver.api.batch import DataBlock, DataBlocks, rng_of_parameters
from hpcbal.paramserver.api.columns import IntArray
from hpcbal.paramserver.api.update import Parameters, Table
from hpcbal.paramserver.master import messages
from hpcbal.paramserver.master.messages import Report
from hpcbal.paramserver.store.layout import Layout
from hpcbal.paramserver.worker.app_hands import AppHands, CheckedUpdates, Wanted
from hpcbal.paramserver.worker.loading import JobSetup, first_data
from hpcbal.paramserver.worker.resources import Resources, Waits
from hpcbal.paramserver.worker.samples import Cursor, WorkerSamples
from hpcbal.paramserver.worker.worker import Worker

ParameterBlocks = Callable[[Table], Sequence[IntArray]]
"""Cuts a table: for each of its parameter blocks the ids of the rows. Each row is in one block."""


def one_block(table: Table) -> Sequence[IntArray]:
    """The whole table as one parameter block."""
    return (np.arange(table.num_rows),)


class Alone(AppHands):
    """An app that trains in this process.

    Attributes:
        values: parameters by table, shape (num_rows, num_columns).
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
        if mini_batch < 1:
            raise InputError(f"mini_batch: got {mini_batch}, allowed: >= 1")
        tables = tables_of(app).values()
        cut = DataBlocks(app.source.num_samples, num_data_blocks)
        job = JobSetup(app, seed, mini_batch, cut, Layout(tuple(tables), [1] * len(tables)))
        samples = WorkerSamples(cut, seed, job.steps, mini_batch)
        super().__init__(job, samples)
        self._parameter_blocks = {table.name: parameter_blocks(table) for table in tables}
        self.epoch = 0
        self.values: dict[str, NDArray[Any]] = {table.name: self._initial_values(table) for table in tables}
        self._reports: list[Report] = []
        worker = Worker(job.steps, samples, self, Resources(), self._reports.append)
        self._hear, self._life = worker.hear, worker.life()
        self._awaited = next(self._life)
        self._obey(messages.Assign((0,) * num_data_blocks, (), None))
        self._obey(messages.Initialise())

    @property
    def data_blocks(self) -> list[DataBlock]:
        """Samples and the app's state of them."""
        return list(self._samples.whole())

    def train_epoch(self) -> None:
        """Take every sample once, in steps of about `mini_batch` samples."""
        self.epoch += 1
        self._obey(messages.MayStart(self.epoch * self._job.steps))

    def evaluate(self) -> dict[str, float]:
        """The app's metrics with the present parameters."""
        for cursor in self._samples.cursors.values():
            cursor.evaluated = self.epoch - 1  # it may have been asked for before
        self._obey(messages.Evaluate(self.epoch))
        report = self._reports[-1]
        assert isinstance(report, messages.Evaluated)
        sums: dict[str, float] = {}
        for terms in (*report.data.values(), *report.parameters.values()):
            for name, term in terms.items():
                sums[name] = sums.get(name, 0.0) + float(term)
        return checked_metrics(self._job.app.metrics(sums))

    def _obey(self, order: Message) -> None:
        """Let the worker do all that it can: nothing that it waits for takes time."""
        self._reports.clear()
        self._hear(order)
        while self._awaited():
            self._awaited = next(self._life)

    def _initial_values(self, table: Table) -> NDArray[Any]:
        values = np.empty((table.num_rows, table.num_columns), table.dtype)
        for number, rows in enumerate(self._parameter_blocks[table.name]):
            rng = rng_of_parameters(self._job.seed, table.name, number)
            values[rows] = self._job.app.initial(table.name, rows, rng)
        return values

    # See `Hands`.

    worker_bytes = num_unapplied = 0

    def load(self, order: messages.Assign) -> Waits[None]:
        yield from ()
        for number in range(self._job.cut.num_blocks):
            self._samples.add(first_data(self._job, number), Cursor())

    def pull(self, wanted: Wanted, step: int, share: int, *, keeps_dense: bool = False) -> Waits[Parameters]:
        """Rows of sparse tables are copies; dense tables are read where they are."""
        yield from ()
        return {
            name: values[wanted.needs[name]] if name in wanted.needs else _read_only(values)
            for name, values in self.values.items()
        }

    def push(self, updates: CheckedUpdates, step: int, applied: Callable[[], None]) -> Waits[None]:
        yield from ()
        for name, update in updates.items():
            apply_update(self._job.app, name, self.values[name], update.rows, update.deltas)
        applied()

    def drop(self) -> None:
        """Nothing counts rows here."""

    def parameter_objectives(self, epoch: int) -> Iterator[tuple[int, Callable[[], Mapping[str, float]]]]:
        blocks = [(name, rows) for name, blocks in self._parameter_blocks.items() for rows in blocks]
        for number, (name, rows) in enumerate(blocks):
            yield number, partial(self.terms_of_parameters, name, self.values[name][rows])


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
