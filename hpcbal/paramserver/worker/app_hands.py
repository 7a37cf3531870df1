"""The calls of a user's app by a worker, with parameters in servers, or in this process."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from hpcbal.paramserver.api.app import App, has_default_update
from hpcbal.paramserver.api.batch import Batch, DataBlock, gather_batch, whole_block
from hpcbal.paramserver.api.checks import calling, checked_terms
from hpcbal.paramserver.api.columns import IntArray
from hpcbal.paramserver.api.update import Needs, Parameters, Update, checked_needs, checked_updates
from hpcbal.paramserver.worker.loading import JobSetup
from hpcbal.paramserver.worker.resources import Waits
from hpcbal.paramserver.worker.samples import Turn, WorkerSamples
from hpcbal.paramserver.worker.several_blocks import UpdateSum, rows_bytes, size_factor
from hpcbal.paramserver.worker.worker import Hands

CheckedUpdates = Mapping[str, Update]
"""Updates of an app, from `checked_updates`."""


class Wanted(NamedTuple):
    """The rows that a turn or an objective pulls.

    Attributes:
        needs: ids of rows by sparse table.
        batch: of a turn; None: it is for an objective.
        are_shared: whether the rows are those of several data blocks.
    """

    needs: Needs
    batch: Batch | None = None
    are_shared: bool = False


class AppHands(Hands[Wanted, Parameters, CheckedUpdates, DataBlock]):
    """Calls the app; subclasses pull, push, load and save.

    Args:
        job: what to train.
        samples: the worker's blocks.
    """

    def __init__(self, job: JobSetup, samples: WorkerSamples) -> None:
        self._job, self._samples = job, samples
        self._first: UpdateSum | None = None
        self._epoch = 0  # whose objective is computed
        self._pulled: Wanted | None = None

    @property
    def now_s(self) -> float:
        return time.monotonic()

    def aside(self) -> AbstractContextManager[None]:
        """Return a context for work on what only this worker knows; jobs beside it go on meanwhile."""
        return nullcontext()

    def paced(self, num_samples: int) -> AbstractContextManager[None]:
        """Return a context for computing so many samples; in emulation it takes as long as it would there."""
        return nullcontext()

    def computed(self, turn: Turn, start_s: float, end_s: float) -> None:
        """Note when the updates of a turn were computed, in seconds of `now_s`."""

    # Turns.

    def gather(self, turn: Turn) -> Wanted:
        job = self._job
        self._samples.make_room(turn)
        with self.aside():
            batch = gather_batch(
                self._samples.slices_of(turn),
                seed=job.seed,
                epoch=turn.epoch,
                step_samples=None if job.is_async else job.samples_of_step(turn.step),
            )
        self._samples.gathered(turn, batch)
        return Wanted(self._needs(batch), batch)

    def _needs(self, batch: Batch) -> Needs:
        with self.aside(), calling(self._job.app, "needs"):
            return checked_needs(self._job.app.needs(batch), self._job.tables)

    def compute(self, turn: Turn, wanted: Wanted, values: Parameters) -> Waits[tuple[CheckedUpdates, float]]:
        yield from ()  # it takes the time that it takes
        job, batch = self._job, wanted.batch
        assert batch is not None
        with self.aside():
            start_s = self.now_s
            with self.paced(turn.num_samples):
                with calling(job.app, "compute"):
                    updates = job.app.compute(batch, values)
                checked = checked_updates(updates, job.tables, wanted.needs)
                self._samples.write_back(batch, turn)
            end_s = self.now_s
        self._samples.computed(end_s - start_s)
        self.computed(turn, start_s, end_s)
        return checked, end_s - start_s

    # Outside of turns.

    def _size_factor(self) -> float:
        """See `size_factor`; with a limit of its own, a job has no memory that is kept free for its turns."""
        job = self._job
        if job.memory_bytes is not None:
            return 1.0
        share = 1.0 if job.is_async else len(self._samples.cursors) / job.cut.num_blocks
        return size_factor(share * job.mini_batch, job.cut.size(0))

    def first_blocks(self) -> Iterator[Callable[[], CheckedUpdates | None]]:
        """See `Hands`.

        Updates of several blocks are added up first if the app has no `update` of its own, and all blocks are
        in memory.
        """
        app = self._job.app
        if type(app).initial_updates is App.initial_updates:
            return
        if has_default_update(app) and self._samples.are_in_memory:
            self._first = UpdateSum(self._size_factor())
        for block in self._samples.whole():
            yield partial(self._first_updates, block)

    def _first_updates(self, block: DataBlock) -> CheckedUpdates | None:
        app, job = self._job.app, self._job
        with self.aside():
            with calling(app, "initial_updates"):
                updates = app.initial_updates(whole_block(block, seed=job.seed, epoch=0))
            if not updates:
                return None
            checked = checked_updates(updates, job.tables, {})
            return checked if self._first is None else self._first.add(checked) or None

    def first_updates_left(self) -> CheckedUpdates | None:
        left, self._first = self._first, None
        return None if left is None else left.take() or None

    def evaluated_together(
        self, numbers: Sequence[int], epoch: int
    ) -> Iterator[tuple[Wanted, Iterable[DataBlock]]]:
        """See `Hands`.

        Rows of sparse tables are pulled once for several blocks, unless blocks are on disk: each would be
        read twice.
        """
        self._epoch = epoch
        has_sparse = any(table.access == "sparse" for table in self._job.tables.values())
        if has_sparse and self._samples.are_in_memory:
            for together, rows in self._needed_together(numbers):
                yield self._wants(Wanted(rows, are_shared=True)), self._samples.whole(together)
        elif has_sparse:
            for block in self._samples.whole(numbers):
                yield self._wants(Wanted(self._needs(self._whole(block)))), [block]
        elif numbers:
            yield self._wants(Wanted({})), self._samples.whole(numbers)

    def _wants(self, wanted: Wanted) -> Wanted:
        self._pulled = wanted
        return wanted

    def _whole(self, block: DataBlock) -> Batch:
        return whole_block(block, seed=self._job.seed, epoch=self._epoch)

    def objective(
        self, block: DataBlock, values: Parameters
    ) -> tuple[int, Callable[[], Mapping[str, float]]]:
        batch, pulled = self._whole(block), self._pulled
        assert pulled is not None
        if pulled.are_shared:
            needs = self._needs(batch)
            with self.aside():
                own = {
                    name: values[name][np.searchsorted(pulled.needs[name], ids)]
                    for name, ids in needs.items()
                }
            values = {**values, **own}

        def compute() -> Mapping[str, float]:
            with calling(self._job.app, "objective"):
                terms = self._job.app.objective(batch, values)
            return checked_terms("objective", terms)

        return block.number, compute

    def terms_of_parameters(self, table: str, values: NDArray[Any]) -> Mapping[str, float]:
        """Terms of the objective of rows of a table."""
        with self.aside(), calling(self._job.app, "parameter_objective"):
            terms = self._job.app.parameter_objective(table, values)
        return checked_terms("parameter_objective", terms)

    def _needed_together(self, numbers: Sequence[int]) -> Iterator[tuple[list[int], dict[str, IntArray]]]:
        """Yield data blocks, and the rows that they need together, as many as there is memory for."""
        tables, factor = self._job.tables, self._size_factor()
        together: list[int] = []
        rows: dict[str, IntArray] = {}
        largest = 0
        for number in numbers:
            (block,) = self._samples.whole([number])
            found = self._needs(self._whole(block))
            with self.aside():
                needs = {name: ids.copy() for name, ids in found.items()}  # the app may use its arrays again
                both = {name: np.union1d(rows[name], ids) for name, ids in needs.items()} if rows else needs
            largest = max(largest, rows_bytes(needs, tables))
            if together and rows_bytes(both, tables) > factor * largest:
                yield together, rows
                together, both, largest = [], needs, rows_bytes(needs, tables)
            together.append(number)
            rows = both
        if together:
            yield together, rows
