"""Give a trainer its batches one by one, and fetch the next one while it computes."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Generator
from concurrent.futures import Executor, Future, wait
from dataclasses import replace
from functools import partial
from typing import Any, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from hpcbal.dataplane.reader import Batch, StreamReader
from hpcbal.dataplane.stream import StreamSpec
from hpcbal.policies.folds import PassParts
from hpcbal.policies.selection import Selection, StepShares
from hpcbal.runtime.balance.balancer import Balancer
from hpcbal.runtime.balance.dealing import Dealer
from hpcbal.runtime.balance.step import Step

log = logging.getLogger(__name__)

NUM_BUFFERS = 2  # one in use, one being filled
POLL_INTERVAL_S = 0.1


class Batches(Protocol):
    """Where the batches of one rank of a trainer group come from.

    Attributes:
        balancer: splits each step over the group.
    """

    balancer: Balancer

    def plan(self, pass_index: int, number: int, own: Selection) -> Callable[[], Step]:
        """Decide which samples each rank takes of a step; called at the same moments on all ranks.

        Args:
            pass_index: index of the pass in the stream.
            number: index of the step, counted since the pass was started or resumed.
            own: the positions of the whole step.

        Returns: a function that fetches this rank's share. It may run in another thread; calls never overlap.
        """

    def set_poll(self, poll: Callable[[], None]) -> None:
        """Call `poll` repeatedly while waiting for data; an exception from it ends the wait."""

    def step_performed(self) -> None:
        """Take note that the group has performed the next planned training step."""

    def release(self, pass_index: int, step: Step) -> None:
        """Take note that nobody reads the samples of a step any more: their memory may be used again."""


class BatchMemory:
    """Reusable memory for batches: touching fresh pages costs more than a copy.

    Args:
        spec: the stream; if its samples differ in size, no memory is kept.
        num_samples: expected number of samples in a batch.
    """

    def __init__(self, spec: StreamSpec, num_samples: int) -> None:
        self._spec = spec
        self._is_static = spec.static_shape() is not None
        self._kept = [spec.empty_batch(num_samples) if self._is_static else None for _ in range(NUM_BUFFERS)]

    def of(self, number: int, num_samples: int) -> NDArray[Any] | None:
        """Memory for step `number`, shape (>= num_samples, ...), or None if samples differ in size."""
        kept = self._kept[number % NUM_BUFFERS]
        if kept is not None and len(kept) < num_samples:
            kept = self._kept[number % NUM_BUFFERS] = self._spec.empty_batch(num_samples)
        return kept


class StreamBatches(Batches):
    """Batches from the shared stream, or from this rank's own stream, which has the same order.

    If the ring has room, steps read their samples where they lie, and release them when they have ended.
    Otherwise samples are copied and released at once, so that preprocessors can go on.

    Args:
        reader: this rank's reader. While a pass runs, only the fetching thread reads from it; the trainer's
            own thread releases.
        batch_size: samples per step, over the whole group.
        rank: this trainer's rank in its group.
        balancer: splits each step over the group.
        dealer: decides who takes which samples where they differ in size; None: each rank takes neighbours.
        repeats: whether a sample may be drawn several times in a pass, so that its draws need moments.
        most_positions: over how many positions the samples of a step may be spread; None: they are
            neighbours.
    """

    def __init__(
        self,
        spec: StreamSpec,
        reader: StreamReader,
        batch_size: int,
        rank: int,
        balancer: Balancer,
        dealer: Dealer | None = None,
        *,
        repeats: bool = False,
        most_positions: int | None = None,
    ) -> None:
        self._spec = spec
        self._reader = reader
        self._rank = rank
        self._dealer = dealer
        self._repeats = repeats
        self.balancer = balancer
        most = min(batch_size, spec.num_positions)
        spread = most if most_positions is None else most_positions
        self._in_place = reader.can_lend(spread)
        if not self._in_place:
            needed = reader.bytes_to_lend(spread)
            advice = "" if needed is None else f"; dataplane.ring_bytes: {needed} would avoid that"
            log.info("batches of %d samples are copied out of the ring%s", most, advice)
        self._buffers = BatchMemory(spec, balancer.deal(0, most).counts[rank])

    def set_poll(self, poll: Callable[[], None]) -> None:
        self._reader.set_poll(poll)

    def step_performed(self) -> None:
        """Do nothing: the position in the stream says it."""

    def release(self, pass_index: int, step: Step) -> None:
        if self._in_place or step.end == self._spec.num_positions:  # else the fetching thread releases
            self._reader.release(pass_index, step.end)

    def plan(self, pass_index: int, number: int, own: Selection) -> Callable[[], Step]:
        planned = self.balancer.deal(own.start, own.start + len(own)).at(own)
        if self._dealer is None:
            return partial(self._fetch, pass_index, number, planned)
        return partial(self._fetch_dealt, pass_index, number, planned, self.balancer.weights, self._dealer)

    def _begin(self, pass_index: int, shares: StepShares) -> None:
        """Release what was skipped since the step before, which may be more than the ring holds."""
        if not self._in_place:
            self._reader.release(pass_index, shares.start)

    def _fetch(self, pass_index: int, number: int, shares: StepShares) -> Step:
        self._begin(pass_index, shares)
        start, end = shares.start, shares.stop
        if shares.picked is None:
            total = self._reader.count_valid(pass_index, start, end)
        else:
            total = len(self._reader.valid(pass_index, Selection(start, end, shares.picked)))
        mine = shares.of_rank(self._rank)
        batch = self._read(pass_index, number, mine, end)
        return Step(start, end, start < self._spec.num_train, total, shares, batch)

    def _read(self, pass_index: int, number: int, mine: Selection, end: int) -> Batch:
        """This rank's samples of a step that ends at position `end`."""
        out = self._buffers.of(number, len(mine))
        batch = self._reader.read_selection(pass_index, mine, out=out, in_place=self._in_place)
        if self._repeats:  # no two draws have the same pass and position
            moments = self._reader.valid(pass_index, mine) + pass_index * self._spec.num_positions
            batch = replace(batch, moments=moments)
        if not self._in_place:
            self._reader.release(pass_index, end)
        return batch

    def _fetch_dealt(
        self,
        pass_index: int,
        number: int,
        planned: StepShares,
        weights: tuple[float, ...],
        dealer: Dealer,
    ) -> Step:
        self._begin(pass_index, planned)
        start, end = planned.start, planned.stop
        ids, sizes = self._reader.measure(pass_index, start, end)
        if planned.picked is not None:
            ids, sizes = ids[planned.picked - start], sizes[planned.picked - start]
        dealt = dealer.deal(planned, ids, sizes, weights)
        mine = dealt.shares.of_rank(self._rank)
        batch = replace(
            self._read(pass_index, number, mine, end),
            work=dealt.work[self._rank],
            padding_limit=dealt.padding_limits[self._rank],
        )
        return Step(
            start,
            end,
            start < self._spec.num_train,
            int(np.count_nonzero(sizes)),
            dealt.shares,
            batch,
            planned=planned.counts,
            slowest=dealt.slowest,
            weight=None if dealt.weights is None else dealt.weights[self._rank],
        )


T = TypeVar("T")


def result_of(work: Future[T], poll: Callable[[], None]) -> T:
    """Wait for the work of another thread, and return its result or raise its error.

    Args:
        poll: called repeatedly while waiting.
    """
    while not wait((work,), POLL_INTERVAL_S).done:
        poll()
    return work.result()


class _GivenUpError(Exception):
    """The batch that the fetching thread waits for is no longer needed."""


class Feeder:
    """Batches of one rank of a trainer group.

    A step never mixes training and validation samples, so all ranks know its kind from its positions alone.

    Args:
        batches: the source of batches; `plan` is called from the trainer's own thread.
        batch_size: samples per step, over the whole group.
        executor: one thread that fetches ahead; None fetches on demand (an MPI without THREAD_MULTIPLE
            allows no second thread).
        poll: called repeatedly by the trainer's own thread while it waits, for messages and heartbeats; a
            wait may be long if all groups wait for the slowest.
        parts: the samples of a pass that the DNN trains and is validated on; None: all.

    Attributes:
        wait_s: seconds that the trainer has waited for batches so far.
    """

    def __init__(
        self,
        spec: StreamSpec,
        batches: Batches,
        batch_size: int,
        executor: Executor | None,
        poll: Callable[[], None],
        parts: PassParts | None = None,
    ) -> None:
        self._parts = parts or PassParts(spec.num_train, spec.num_positions)
        self._batches = batches
        self._batch_size = batch_size
        self._executor = executor
        self._given_up = False
        self._poll = poll
        self.wait_s = 0.0
        # While steps wait for decisions, batches are not fetched ahead. Their times must still show how fast
        # a rank will be once they are fetched ahead again.
        self._overlaps = executor is not None and batches.balancer.usually_ahead
        batches.set_poll(poll if executor is None else self._check_wanted)

    def steps(self, pass_index: int, offset: int) -> Generator[Step, None, None]:
        """Yield the steps of a pass from position `offset`; close the iterator to leave the pass early.

        The batch of a step is valid until the next one is asked for.
        """
        planned = self._parts.steps(pass_index, offset, self._batch_size)
        ahead: Future[Step] | None = None
        fetch: Callable[[], Step] | None = None  # of the next step, if it is planned ahead
        self._given_up = False
        try:
            for number, each in enumerate(planned):
                began = time.perf_counter()
                fetch = fetch or self._batches.plan(pass_index, number, each.own)
                if self._executor is None:
                    step = fetch()
                else:
                    ahead = ahead or self._executor.submit(fetch)
                    step = result_of(ahead, self._poll)
                self.wait_s += time.perf_counter() - began
                ahead = fetch = None
                if self._batches.balancer.plans_ahead and number + 1 < len(planned):
                    fetch = self._batches.plan(pass_index, number + 1, planned[number + 1].own)
                    if self._executor is not None:
                        ahead = self._executor.submit(fetch)
                step = replace(step, end=each.after, num_before=each.num_before, is_overlapped=self._overlaps)
                yield step
                self._batches.release(pass_index, step)
        finally:
            if ahead is not None and not ahead.cancel():
                self._given_up = True
                ahead.exception()

    def _check_wanted(self) -> None:
        if self._given_up:
            raise _GivenUpError
