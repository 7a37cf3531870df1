"""Make the batches of one rank from its part of the data."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hpcbal.data.dataset import BadSample
from hpcbal.data.source import PreprocessedSamples
from hpcbal.dataplane.maker import BatchMaker
from hpcbal.dataplane.reader import Batch
from hpcbal.dataplane.stream import StreamSpec
from hpcbal.errors import DataError
from hpcbal.policies.partitioning import Partition, Samples, order_of_part, spans_of_draw
from hpcbal.policies.selection import Selection, StepShares
from hpcbal.runtime.balance.balancer import Balancer
from hpcbal.runtime.balance.step import Step
from hpcbal.runtime.group.feeding import Batches, BatchMemory
from hpcbal.runtime.partitions.part import Parts

NUM_ORDERS = 2
"""Number of traversal orders to keep: a step may begin in one traversal and end in the next."""
_NUMBER_STRIDE = 2**32
"""Gives a sample different random operations in each traversal, even after parts have changed."""


class PartBatches(Batches):
    """Draws a rank's share of each training step from its own part, which it traverses repeatedly.

    A pass still has as many samples as there are training samples, drawn by the whole group. In validation,
    each rank takes the positions that it holds, so each sample counts once per pass.

    Args:
        samples: preprocesses the samples that this rank holds.
        parts: this rank's view of the partition.
        usable: which validation samples are not broken, shape (num_validation,).
        num_bad: number of broken samples in the whole dataset.
        bad: (id, where, reason) of the broken samples that this rank found.

    Attributes:
        num_bad: see Args.
        maker: makes the batches.
    """

    def __init__(
        self,
        spec: StreamSpec,
        samples: PreprocessedSamples,
        parts: Parts,
        balancer: Balancer,
        batch_size: int,
        seed: int,
        usable: NDArray[np.bool_],
        num_bad: int,
        bad: list[tuple[int, str, str]],
    ) -> None:
        self.parts = parts
        self.num_bad = num_bad
        self.maker = BatchMaker(spec, samples)
        self.maker.note_bad(bad)
        self._spec = spec
        self._samples = samples
        self.balancer = balancer
        self._rank = rank = parts.rank
        self._usable = usable
        self._num_ranks = parts.performed.num_parts
        self._buffers = BatchMemory(spec, balancer.deal(0, min(batch_size, spec.num_positions)).counts[rank])
        self._seed = seed
        self._orders: dict[tuple[int, int], Samples] = {}

    def set_poll(self, poll: Callable[[], None]) -> None:
        """Call `poll` before each sample."""
        self.maker.poll = poll

    def step_performed(self) -> None:
        self.parts.step_performed()

    def release(self, pass_index: int, step: Step) -> None:
        """Do nothing: its memory is used again two steps later."""

    def plan(self, pass_index: int, number: int, own: Selection) -> Callable[[], Step]:
        start, end = own.start, own.stop  # k_fold is refused: parts are of all training samples
        if start >= self._spec.num_train:
            self.parts.move_samples()
            return partial(self._fetch_validation, number, start, end)
        if start == 0:
            self.parts.begin_pass()
        shares = self.balancer.deal(start, end)
        return partial(self._fetch_training, number, shares, self.parts.plan_step(shares.counts))

    def _fetch_training(self, number: int, shares: StepShares, partition: Partition) -> Step:
        share = shares.counts[self._rank]
        wanted: list[tuple[int, int]] = []
        size, drawn = partition.sizes[self._rank], partition.drawn[self._rank]
        for traversal, first, last in spans_of_draw(size, drawn, share):
            chosen = self._order(partition, traversal)[first:last]
            moment = partition.number * _NUMBER_STRIDE + traversal
            wanted += [(sample_id, moment) for sample_id in self._samples.train_ids[chosen].tolist()]
        batch, seconds = self._make(wanted, training=True, out=self._buffers.of(number, share))
        total = sum(shares.counts)
        return Step(shares.start, shares.stop, True, total, shares, batch, preprocessing_s=seconds)

    def _order(self, partition: Partition, traversal: int) -> Samples:
        key = (partition.number, traversal)
        if key not in self._orders:
            while len(self._orders) >= NUM_ORDERS:
                del self._orders[min(self._orders)]
            self._orders[key] = order_of_part(partition, self._rank, traversal, self._seed)
        return self._orders[key]

    def _fetch_validation(self, number: int, start: int, end: int) -> Step:
        first, last = start - self._spec.num_train, end - self._spec.num_train
        shares = StepShares.dealt(start, np.arange(first, last) % self._num_ranks, self._num_ranks)
        held = shares.of_rank(self._rank).positions - self._spec.num_train
        mine = self._samples.validation_ids[held[self._usable[held]]]
        out = self._buffers.of(number, len(mine))
        wanted = [(sample_id, 0) for sample_id in mine.tolist()]
        batch, seconds = self._make(wanted, training=False, out=out)
        total = int(np.count_nonzero(self._usable[first:last]))
        return Step(start, end, False, total, shares, batch, preprocessing_s=seconds)

    def _make(
        self, wanted: list[tuple[int, int]], *, training: bool, out: NDArray[Any] | None
    ) -> tuple[Batch, float]:
        """Preprocess samples given by (id, moment); returns the batch and the seconds that it took."""
        batch, seconds = self.maker.make(wanted, training=training, out=out)
        if len(batch) < len(wanted):
            error = BadSample(*self.maker.take_bad()[-1])
            raise DataError(f"{error}; it could be preprocessed when this rank loaded it")
        return batch, seconds
