"""Make batches where they are needed, sample by sample, without a stream."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hpcbal.comm.backoff import Backoff
from hpcbal.data.dataset import BadSample
from hpcbal.data.source import PreprocessedSamples
from hpcbal.dataplane.cache import MOST_WAIT_S
from hpcbal.dataplane.reader import Batch
from hpcbal.dataplane.stream import StreamSpec

Bad = tuple[int, str, str]
"""(id, where, reason) of a broken sample."""

_Made = tuple[NDArray[Any], NDArray[Any]] | None


class BatchMaker:
    """Preprocesses the samples of this rank's batches.

    If samples are kept in a cache that the node shares, ranks that need the same ones do not all make them: a
    rank makes first what nobody else is making, and then takes what others have made meanwhile.

    Attributes:
        samples: preprocesses them.
        samples_made, busy_s: number of samples preprocessed, and seconds spent on that.
        poll: called before each sample; an exception from it ends the work.
    """

    def __init__(self, spec: StreamSpec, samples: PreprocessedSamples) -> None:
        self._label = spec.label
        self.samples = samples
        self.samples_made = 0
        self.busy_s = 0.0
        self.poll: Callable[[], None] = _nothing
        self._bad: deque[Bad] = deque()  # another thread may take them

    @property
    def num_from_cache(self) -> int:
        """Samples that were found in the cache, so far."""
        return 0 if self.samples.cache is None else self.samples.cache.num_hits

    @property
    def num_fetched(self) -> int:
        """How many of these came from other nodes."""
        return 0 if self.samples.cache is None else self.samples.cache.num_fetched

    def take_warning(self) -> str:
        """Return what people should know about the cache, once; empty if there is nothing."""
        return "" if self.samples.cache is None else self.samples.cache.take_warning()

    def note_bad(self, bad: Sequence[Bad]) -> None:
        """Take note of broken samples that were found elsewhere on this rank."""
        self._bad += bad

    def take_bad(self) -> list[Bad]:
        """Return the broken samples not returned yet."""
        return [self._bad.popleft() for _ in range(len(self._bad))]

    def make(
        self,
        wanted: Sequence[tuple[int, int]],
        *,
        training: bool,
        out: NDArray[Any] | None,
        partner_of: Sequence[int] | None = None,
        moments: NDArray[np.int64] | None = None,
    ) -> tuple[Batch, float]:
        """Preprocess samples.

        Args:
            wanted: (id, moment) of each sample; the moment is what random operations depend on.
            training: whether random operations apply, and samples are mixed.
            out: memory for samples of one shape, shape (>= n, *sample shape); None: they differ.
            partner_of: for each sample of the batch, the place in `wanted` of the one that it is mixed with;
                shape (n,). What follows the first n samples is needed for mixing only. None: the next one.
            moments: `Batch.moments` of the n samples; None: those of `wanted`.

        Returns: the batch, without broken samples, and the seconds that it took.
        """
        try:
            return self._make(wanted, training, out, partner_of, moments)
        finally:
            self.samples.ask(())

    def keep(self, sample_id: int) -> None:
        """Put a sample into the cache."""
        began = time.perf_counter()
        try:
            self.samples.keep(sample_id)
            self.samples_made += 1
        except BadSample as error:
            self._note_broken(error)
        self.busy_s += time.perf_counter() - began

    def _note_broken(self, error: BadSample) -> None:
        if self.samples.cache is not None:
            self.samples.cache.give_up(error.sample_id)
        self._bad.append((error.sample_id, error.where, error.reason))

    def _make(
        self,
        wanted: Sequence[tuple[int, int]],
        training: bool,
        out: NDArray[Any] | None,
        partner_of: Sequence[int] | None,
        moments: NDArray[np.int64] | None,
    ) -> tuple[Batch, float]:
        began = time.perf_counter()
        mixes = training and self.samples.mixes
        num_samples = len(wanted) if partner_of is None else len(partner_of)
        y = np.empty((num_samples, *self._label.shape), self._label.dtype)
        made: list[_Made] = [None] * len(wanted)
        for index in self._in_order_of_making(wanted):
            sample_id, moment = wanted[index]
            try:
                sample, label = self.samples.sample(sample_id, moment, training)
            except BadSample as error:
                self._note_broken(error)
                continue
            if mixes:
                made[index] = sample.copy(), label.copy()
            else:
                y[index] = label
                if out is None:
                    sample = sample.copy()
                else:
                    out[index] = sample
                    sample = out[index]
                made[index] = sample, y[index]
        if mixes:
            assert out is not None, "samples that are mixed have one shape"
            for index in range(num_samples):
                own = made[index]
                if own is not None:
                    partner = made[(index + 1) % num_samples if partner_of is None else partner_of[index]]
                    out[index], y[index] = self.samples.mixed(*wanted[index], own, partner)
        good = [index for index in range(num_samples) if made[index] is not None]
        ids = np.array([wanted[index][0] for index in good], np.int64)
        x: NDArray[Any] | list[NDArray[Any]]
        if out is None:
            x, y = [entry[0] for index in good if (entry := made[index]) is not None], y[good]
        elif len(good) == num_samples:
            x = out[:num_samples]
        else:
            x, y = out[good], y[good]
        if moments is None:
            moments = np.array([moment for _, moment in wanted[:num_samples]], np.int64)
        self.samples_made += sum(entry is not None for entry in made)
        seconds = time.perf_counter() - began
        self.busy_s += seconds
        return Batch(ids, x, y, moments=moments[good]), seconds

    def _in_order_of_making(self, wanted: Sequence[tuple[int, int]]) -> Iterator[int]:
        """Yield the places in `wanted`: last come samples that others make or send, once they are there."""
        cache = self.samples.cache
        self.samples.ask(sample_id for sample_id, _ in wanted)
        made_elsewhere = []
        for index, (sample_id, _) in enumerate(wanted):
            self.poll()  # before the claim: if it ends the work, nobody waits for the sample
            if cache is None or cache.claim(sample_id):
                yield index
            else:
                made_elsewhere.append(index)
        since_s, backoff = time.monotonic(), Backoff()
        while made_elsewhere:
            assert cache is not None
            # First those for which others may wait: two ranks may need what the other one is to make.
            ready = [index for index in made_elsewhere if not cache.is_claimed(wanted[index][0])]
            if time.monotonic() - since_s > MOST_WAIT_S:
                ready = ready or made_elsewhere
            for index in ready:
                self.poll()
                yield index
            made_elsewhere = [index for index in made_elsewhere if index not in ready]
            if ready:
                since_s = time.monotonic()
                backoff.reset()
            else:
                self.poll()
                backoff.wait()


def _nothing() -> None:
    """Do nothing."""
