"""Hand a trainer its batches one after the other, fetching the next one while it computes."""

from __future__ import annotations

import time
from collections.abc import Callable, Generator
from concurrent.futures import Executor, Future
from dataclasses import dataclass

from hpcbal.dataplane.reader import Batch, StreamReader
from hpcbal.dataplane.stream import StreamSpec
from hpcbal.runtime.balancing import Balancer

NUM_BUFFERS = 2  # one that is computed on, one that is being filled
POLL_INTERVAL_S = 0.1


@dataclass(frozen=True, slots=True)
class Step:
    """One step of a pass, as this rank sees it.

    Attributes:
        start, end: positions of the whole step.
        training: whether it trains or validates.
        num_samples_total: valid samples of the whole step.
        shares: positions of each rank.
        batch: this rank's share; its memory is used again two steps later.
    """

    start: int
    end: int
    training: bool
    num_samples_total: int
    shares: tuple[int, ...]
    batch: Batch


class _GivenUpError(Exception):
    """Nobody wants the batch any more that the fetching thread waits for."""


class Feeder:
    """Batches of one rank of a trainer group.

    A step never holds both training and validation samples, so that all ranks know from the positions alone
    what it is.

    Args:
        reader: of this rank; while a pass runs, only the fetching thread touches it.
        batch_size: samples per step of the whole group.
        rank: of this trainer in its group.
        balancer: how a step is split over the group; asked by the trainer's own thread, at the same moments
            on all ranks.
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
        reader: StreamReader,
        batch_size: int,
        rank: int,
        balancer: Balancer,
        executor: Executor | None,
        poll: Callable[[], None],
    ) -> None:
        self._spec = spec
        self._reader = reader
        self._batch_size = batch_size
        self._rank = rank
        self._balancer = balancer
        self._executor = executor
        static = spec.static_shape() is not None
        largest = balancer.split(min(batch_size, spec.num_positions))[rank]
        self._buffers = [spec.empty_batch(largest) if static else None for _ in range(NUM_BUFFERS)]
        self._given_up = False
        self._poll = poll
        self.wait_s = 0.0
        reader.set_poll(poll if executor is None else self._check_wanted)

    def steps(self, pass_index: int, offset: int) -> Generator[Step, None, None]:
        """The steps of a pass from position `offset` on; close the iterator to leave the pass early."""
        ranges = self._ranges(offset)
        ahead: Future[Step] | None = None
        shares: tuple[int, ...] | None = None  # of the step that comes, where they are fixed ahead
        self._given_up = False
        try:
            for number, (start, end) in enumerate(ranges):
                began = time.perf_counter()
                shares = shares or self._balancer.split(end - start)
                if self._executor is None:
                    step = self._fetch(pass_index, number, start, end, shares)
                else:
                    if ahead is None:
                        ahead = self._executor.submit(self._fetch, pass_index, number, start, end, shares)
                    step = self._wait_for(ahead)
                self.wait_s += time.perf_counter() - began
                ahead = shares = None
                if not self._balancer.is_fresh and number + 1 < len(ranges):
                    coming = ranges[number + 1]
                    shares = self._balancer.split(coming[1] - coming[0])
                    if self._executor is not None:
                        ahead = self._executor.submit(self._fetch, pass_index, number + 1, *coming, shares)
                yield step
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

    def _fetch(self, pass_index: int, number: int, start: int, end: int, shares: tuple[int, ...]) -> Step:
        total = self._reader.count_valid(pass_index, start, end)
        share = shares[self._rank]
        first = start + sum(shares[: self._rank])
        buffer = self._buffers[number % NUM_BUFFERS]
        if buffer is not None and len(buffer) < share:
            buffer = self._buffers[number % NUM_BUFFERS] = self._spec.empty_batch(share)
        batch = self._reader.read(pass_index, first, first + share, out=buffer)
        self._reader.release(pass_index, end)
        return Step(start, end, start < self._spec.num_train, total, shares, batch)

    def _check_wanted(self) -> None:
        if self._given_up:
            raise _GivenUpError
