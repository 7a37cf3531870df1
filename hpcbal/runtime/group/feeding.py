"""Hand a trainer its batches one after the other, fetching the next one while it computes."""

from __future__ import annotations

import time
from collections.abc import Callable, Generator
from concurrent.futures import Executor, Future
from dataclasses import replace
from functools import partial
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from hpcbal.dataplane.reader import StreamReader
from hpcbal.dataplane.stream import StreamSpec
from hpcbal.runtime.balance.balancer import Balancer
from hpcbal.runtime.balance.step import Step
from hpcbal.training.arrays import Array
from hpcbal.values.selection import StepShares

NUM_BUFFERS = 2  # one that is computed on, one that is being filled
POLL_INTERVAL_S = 0.1
_NOTHING = np.zeros(0)


class Batches(Protocol):
    """Where the batches of one rank of a trainer group come from.

    Attributes:
        balancer: how a step is split over the group.
    """

    balancer: Balancer

    def plan(self, pass_index: int, number: int, start: int, end: int) -> Callable[[], Step]:
        """Fix which samples each rank takes of the step start..end-1; at the same moments on all ranks.

        Args:
            pass_index: of the stream.
            number: of the step, counted since the pass was begun or gone on with.
            start, end: positions of the whole step.

        Returns: what fetches this rank's share, maybe in another thread; one after the other.
        """

    def set_poll(self, poll: Callable[[], None]) -> None:
        """Call `poll` again and again while waiting for data; what it raises ends the wait."""

    def report(self) -> Array:
        """Numbers that ride in the all-reduce of a training step, shape (k,), k equal on all ranks."""

    def take(self, summed: Array) -> None:
        """A training step has been performed; these are the sums of what the ranks have reported."""


class Buffers:
    """Memory for batches, used again and again: pages of fresh memory cost more than a copy.

    Args:
        spec: of the stream; samples that differ in size get no such memory.
        num_samples: that a batch is expected to hold.
    """

    def __init__(self, spec: StreamSpec, num_samples: int) -> None:
        self._spec = spec
        self._is_static = spec.static_shape() is not None
        self._kept = [spec.empty_batch(num_samples) if self._is_static else None for _ in range(NUM_BUFFERS)]

    def of(self, number: int, num_samples: int) -> NDArray[Any] | None:
        """Memory for step `number`, shape (>= num_samples, ...), or None where samples differ in size."""
        kept = self._kept[number % NUM_BUFFERS]
        if kept is not None and len(kept) < num_samples:
            kept = self._kept[number % NUM_BUFFERS] = self._spec.empty_batch(num_samples)
        return kept


class StreamBatches(Batches):
    """Batches out of the shared stream, or out of one of this rank's own in the same order.

    Args:
        reader: of this rank; while a pass runs, only the fetching thread touches it.
        batch_size: samples per step of the whole group.
        rank: of this trainer in its group.
        balancer: how a step is split over the group.
    """

    def __init__(
        self, spec: StreamSpec, reader: StreamReader, batch_size: int, rank: int, balancer: Balancer
    ) -> None:
        self._spec = spec
        self._reader = reader
        self._rank = rank
        self.balancer = balancer
        self._buffers = Buffers(spec, balancer.deal(0, min(batch_size, spec.num_positions)).counts[rank])

    def set_poll(self, poll: Callable[[], None]) -> None:
        self._reader.set_poll(poll)

    def report(self) -> Array:
        """As `Batches.report`: nothing."""
        return _NOTHING

    def take(self, summed: Array) -> None:
        """Nothing was added."""

    def plan(self, pass_index: int, number: int, start: int, end: int) -> Callable[[], Step]:
        return partial(self._fetch, pass_index, number, self.balancer.deal(start, end))

    def _fetch(self, pass_index: int, number: int, shares: StepShares) -> Step:
        start, end = shares.start, shares.stop
        total = self._reader.count_valid(pass_index, start, end)
        mine = shares.of_rank(self._rank)
        batch = self._reader.read_selection(pass_index, mine, out=self._buffers.of(number, len(mine)))
        self._reader.release(pass_index, end)
        return Step(start, end, start < self._spec.num_train, total, shares, batch)


class _GivenUpError(Exception):
    """Nobody wants the batch any more that the fetching thread waits for."""


class Feeder:
    """Batches of one rank of a trainer group.

    A step never holds both training and validation samples, so that all ranks know from the positions alone
    what it is.

    Args:
        batches: where they come from; asked to plan by the trainer's own thread.
        batch_size: samples per step of the whole group.
        executor: one thread that fetches ahead; None fetches when asked (an MPI without THREAD_MULTIPLE
            allows no second thread).
        poll: called by the trainer's own thread again and again while it waits, for messages and heartbeats:
            where all groups wait for the slowest, a wait may last.

    Attributes:
        wait_s: seconds the trainer has waited for batches so far.
    """

    def __init__(
        self,
        spec: StreamSpec,
        batches: Batches,
        batch_size: int,
        executor: Executor | None,
        poll: Callable[[], None],
    ) -> None:
        self._spec = spec
        self._batches = batches
        self._batch_size = batch_size
        self._executor = executor
        self._given_up = False
        self._poll = poll
        self.wait_s = 0.0
        # While decisions are waited for, batches are not fetched ahead, but their times are to show how fast
        # a rank will be when they are again.
        self._overlaps = executor is not None and batches.balancer.usually_ahead
        batches.set_poll(poll if executor is None else self._check_wanted)

    def steps(self, pass_index: int, offset: int) -> Generator[Step, None, None]:
        """The steps of a pass from position `offset` on; close the iterator to leave the pass early."""
        ranges = self._ranges(offset)
        ahead: Future[Step] | None = None
        fetch: Callable[[], Step] | None = None  # of the step that comes, where it is planned ahead
        self._given_up = False
        try:
            for number, (start, end) in enumerate(ranges):
                began = time.perf_counter()
                fetch = fetch or self._batches.plan(pass_index, number, start, end)
                if self._executor is None:
                    step = fetch()
                else:
                    ahead = ahead or self._executor.submit(fetch)
                    step = self._wait_for(ahead)
                self.wait_s += time.perf_counter() - began
                ahead = fetch = None
                if self._batches.balancer.plans_ahead and number + 1 < len(ranges):
                    fetch = self._batches.plan(pass_index, number + 1, *ranges[number + 1])
                    if self._executor is not None:
                        ahead = self._executor.submit(fetch)
                yield replace(step, is_overlapped=self._overlaps)
        finally:
            if ahead is not None and not ahead.cancel():
                self._given_up = True
                ahead.exception()

    def _wait_for(self, ahead: Future[Step]) -> Step:
        while True:
            try:
                return ahead.result(POLL_INTERVAL_S)
            except TimeoutError:
                self._poll()

    def _ranges(self, offset: int) -> list[tuple[int, int]]:
        ranges = []
        while offset < self._spec.num_positions:
            limit = self._spec.num_train if offset < self._spec.num_train else self._spec.num_positions
            end = min(offset + self._batch_size, limit)
            ranges.append((offset, end))
            offset = end
        return ranges

    def _check_wanted(self) -> None:
        if self._given_up:
            raise _GivenUpError
