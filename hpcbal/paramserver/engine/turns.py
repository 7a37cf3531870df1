"""A worker's turn: pull what a batch needs, compute, push the updates and go on."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from hpcbal.paramserver.contract import (
    App,
    Batch,
    DataBlock,
    IntArray,
    Update,
    checked_needs,
    checked_terms,
    checked_updates,
    gather_batch,
    has_default_update,
    whole_block,
)
from hpcbal.paramserver.engine.client import ParameterClient
from hpcbal.paramserver.engine.held_block import BEFORE_ALL_STEPS
from hpcbal.paramserver.engine.job import EmulatedMachine, Job
from hpcbal.paramserver.engine.place import Place
from hpcbal.paramserver.engine.reactor import Reactor
from hpcbal.paramserver.engine.samples import Turn, WorkerSamples
from hpcbal.paramserver.engine.several_blocks import UpdateSum, rows_bytes, size_factor
from hpcbal.paramserver.engine.trace import Trace
from hpcbal.paramserver.engine.user_app import calling
from hpcbal.paramserver.engine.wire import Wire
from hpcbal.paramserver.machine.messages import TurnDone


class _Span(NamedTuple):
    """From when to when something took place, in seconds of `time.monotonic`."""

    start_s: float
    end_s: float


class Turns:
    """Takes the turns of one worker.

    Args:
        job: what to train.
        machine: paces `compute`.
        client: pulls and pushes.
        reactor: serves others during pauses.
        wire: counts bytes.
        trace: records each turn.
        place: says when each subtask of a turn may start.
        samples: has the data blocks.
    """

    def __init__(
        self,
        job: Job,
        machine: EmulatedMachine,
        client: ParameterClient,
        reactor: Reactor,
        wire: Wire,
        trace: Trace,
        place: Place,
        samples: WorkerSamples,
    ) -> None:
        self._job, self._machine, self._trace, self._place = job, machine, trace, place
        self._samples = samples
        self._client, self._reactor, self._wire = client, reactor, wire

    def take(self, turn: Turn, then: Callable[[TurnDone], None]) -> None:
        """Take a turn; returns when the updates have been sent.

        Args:
            then: called with the report when all updates have been applied.
        """
        job = self._job
        step = turn.epoch if job.is_async else turn.epoch * job.steps + turn.step
        if not turn.num_samples:
            then(TurnDone(step, turn.blocks, 0, 0.0, 0.0, 0.0, 0))
            return
        bytes_before = self._wire.worker_bytes
        self._samples.make_room(turn)
        with self._place.aside():
            batch = gather_batch(
                self._samples.slices_of(turn),
                seed=job.seed,
                epoch=turn.epoch,
                step_samples=None if job.is_async else job.samples_of_step(turn.step),
            )
        self._samples.gathered(turn, batch)
        needs = self._needs(batch)
        parameters, pull = self._pull(needs, step, len(turn.blocks), is_turn=True)
        num_bytes = self._wire.worker_bytes - bytes_before
        with self._place.computing():
            start_s = time.monotonic()
            with self._paced(turn.num_samples):
                with calling(job.app, "compute"):
                    updates = job.app.compute(batch, parameters)
                checked = checked_updates(updates, job.tables, needs)
                self._samples.write_back(batch, turn)
            end_s = time.monotonic()
        del batch
        self._samples.computed(end_s - start_s)
        self._trace.turn(turn.epoch, pull.start_s, start_s, end_s, turn.num_samples)
        with self._place.communicating(step):
            push_start_s = time.monotonic()

            def applied() -> None:
                push_s = time.monotonic() - push_start_s
                then(
                    TurnDone(
                        step,
                        turn.blocks,
                        turn.num_samples,
                        end_s - start_s,
                        pull.end_s - pull.start_s,
                        push_s,
                        num_bytes,
                    )
                )

            # The next pull may be answered before this push is applied; its bytes are not those of this turn.
            bytes_before = self._wire.worker_bytes
            self._client.push(checked, applied, step)
            self._client.drop_rows()
            num_bytes += self._wire.worker_bytes - bytes_before
            self._wait_if_shared()

    def _wait_if_shared(self) -> None:
        if self._place.waits_for_pushes:
            self._reactor.wait_until(lambda: not self._client.num_unapplied)

    def _needs(self, batch: Batch) -> dict[str, IntArray]:
        with self._place.aside(), calling(self._job.app, "needs"):
            return checked_needs(self._job.app.needs(batch), self._job.tables)

    def _pull(
        self,
        needs: Mapping[str, IntArray],
        step: int,
        share: int,
        *,
        is_turn: bool = False,
        keeps_dense: bool = False,
    ) -> tuple[dict[str, NDArray[Any]], _Span]:
        with self._place.communicating(step if is_turn else None):
            start_s = time.monotonic()
            parameters = self._client.pull(needs, step, share, keeps_dense=keeps_dense)
            self._client.wait_sent()  # the app may use the memory of its last updates again
            return parameters, _Span(start_s, time.monotonic())

    def _paced(self, num_samples: int) -> AbstractContextManager[None]:
        """Computing of so many samples: as long as it takes on the emulated machine, if there is one."""
        machine = self._machine
        if machine.seconds_per_sample is None:
            return nullcontext()
        seconds = num_samples * machine.seconds_per_sample / machine.speed
        return self._place.taking(self._reactor, seconds)

    def initialise(self, samples: WorkerSamples) -> None:
        """Push what data blocks push once, before the first epoch; returns when it has been applied.

        Updates of several blocks are added up first if the app has no `update` of its own, and all blocks are
        in memory.
        """
        app = self._job.app
        if type(app).initial_updates is App.initial_updates:
            return
        adds_up = has_default_update(app) and samples.are_in_memory
        total = UpdateSum(self._size_factor() if adds_up else 1.0)
        for block in samples.whole():
            with self._place.computing(), calling(app, "initial_updates"):
                updates = app.initial_updates(whole_block(block, seed=self._job.seed, epoch=0))
            if updates:
                checked = checked_updates(updates, self._job.tables, {})
                if adds_up:
                    with self._place.aside():
                        checked = total.add(checked)
                self._push_first(checked)
        self._push_first(total.take())

    def _push_first(self, updates: Mapping[str, Update]) -> None:
        if updates:
            with self._place.communicating():
                self._client.push(updates, _nothing, BEFORE_ALL_STEPS)
                self._reactor.wait_until(lambda: not self._client.num_unapplied)

    def _size_factor(self) -> float:
        """See `size_factor`; with a limit of its own, a job has no memory that is kept free for its turns."""
        job = self._job
        if job.memory_bytes is not None:
            return 1.0
        share = 1.0 if job.is_async else len(self._samples.cursors) / job.cut.num_blocks
        return size_factor(share * job.mini_batch, job.cut.size(0))

    def evaluate(self, numbers: Sequence[int], epoch: int) -> dict[int, dict[str, float]]:
        """Terms of the objective of the samples of data blocks, by block.

        Dense tables are pulled once for all of them, and rows of sparse ones once for several, unless blocks
        are on disk: each would be read twice.

        Args:
            numbers: of the blocks.
        """
        found: dict[int, dict[str, float]] = {}
        step = epoch * self._job.steps
        has_sparse = any(table.access == "sparse" for table in self._job.tables.values())
        if has_sparse and self._samples.are_in_memory:
            for together, rows in self._needed_together(numbers, epoch):
                parameters, _ = self._pull(rows, step, 0, keeps_dense=bool(found))
                for block in self._samples.whole(together):
                    found[block.number] = self._terms(block, epoch, parameters, rows)
                del parameters
                self._client.drop_rows()
            return found
        parameters = {}
        for block in self._samples.whole(numbers):
            if has_sparse or not found:
                rows = self._needs(whole_block(block, seed=self._job.seed, epoch=epoch))
                parameters, _ = self._pull(rows, step, 0, keeps_dense=bool(found))
            found[block.number] = self._terms(block, epoch, parameters)
            if has_sparse:
                parameters = {}
            self._client.drop_rows()
        return found

    def _terms(
        self,
        block: DataBlock,
        epoch: int,
        parameters: Mapping[str, NDArray[Any]],
        rows: Mapping[str, IntArray] | None = None,
    ) -> dict[str, float]:
        """Terms of one block.

        Args:
            rows: whose values are among `parameters`, also those of other blocks; None: its own ones.
        """
        batch = whole_block(block, seed=self._job.seed, epoch=epoch)
        if rows is not None:
            needs = self._needs(batch)
            with self._place.aside():
                own = {
                    name: parameters[name][np.searchsorted(rows[name], ids)] for name, ids in needs.items()
                }
            parameters = {**parameters, **own}
        with self._place.computing(), calling(self._job.app, "objective"):
            terms = self._job.app.objective(batch, parameters)
        return checked_terms("objective", terms)

    def _needed_together(
        self, numbers: Sequence[int], epoch: int
    ) -> Iterator[tuple[list[int], dict[str, IntArray]]]:
        """Blocks, and the rows that they need together, as far as there is memory for them."""
        tables, factor = self._job.tables, self._size_factor()
        together: list[int] = []
        rows: dict[str, IntArray] = {}
        largest = 0
        for number in numbers:
            needs = self._needs_of(number, epoch)
            with self._place.aside():
                needs = {name: ids.copy() for name, ids in needs.items()}  # the app may use its arrays again
                both = {name: np.union1d(rows[name], ids) for name, ids in needs.items()} if rows else needs
            largest = max(largest, rows_bytes(needs, tables))
            if together and rows_bytes(both, tables) > factor * largest:
                yield together, rows
                together, both, largest = [], needs, rows_bytes(needs, tables)
            together.append(number)
            rows = both
        if together:
            yield together, rows

    def _needs_of(self, number: int, epoch: int) -> dict[str, IntArray]:
        (block,) = self._samples.whole([number])
        return self._needs(whole_block(block, seed=self._job.seed, epoch=epoch))


def _nothing() -> None:
    pass
