"""The batches of a group that trains a pass of its own: its ranks make them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial

import numpy as np
from numpy.typing import NDArray

from hpcbal.dataplane.maker import BatchMaker
from hpcbal.dataplane.reader import Batch
from hpcbal.dataplane.stream import StreamSpec
from hpcbal.policies.selection import Selection, StepShares
from hpcbal.runtime.balance.balancer import Balancer
from hpcbal.runtime.balance.dealing import Dealer
from hpcbal.runtime.balance.step import Step
from hpcbal.runtime.group.feeding import Batches, BatchMemory


class OwnBatches(Batches):
    """Batches that the ranks of a group make themselves, of the group's own pass.

    The samples, their order and the random numbers behind them are those of pass p of the shared stream, for
    the DNN's own p; so they depend neither on other DNNs nor on the number of slots.

    No rank knows which samples of the others are broken: a step counts as whole, and `finish_step` corrects
    the sum of the gradients for those that were missing.

    To deal a step, all ranks must know the sizes of its samples. Where the dataset declares none, each rank
    makes all samples of the step, measures them, and keeps its own.

    Args:
        spec: of the samples.
        maker: makes the batches.
        batch_size: samples per step, over the whole group.
        rank: this trainer's rank in its group.
        balancer: splits each step over the group.
        dealer: decides who takes which samples where they differ in size; None: each rank takes neighbours.
        repeats: see `StreamBatches`.
    """

    def __init__(
        self,
        spec: StreamSpec,
        maker: BatchMaker,
        batch_size: int,
        rank: int,
        balancer: Balancer,
        dealer: Dealer | None = None,
        *,
        repeats: bool = False,
    ) -> None:
        self.balancer = balancer
        self._spec = spec
        self._maker = maker
        self._samples = maker.samples
        self._rank = rank
        self._dealer = dealer
        most = min(batch_size, spec.num_positions)
        self._buffers = BatchMemory(spec, balancer.deal(0, most).counts[rank])
        self._repeats = repeats
        self._pass_index = -1
        self._ids = np.empty(0, np.int64)
        self._moments: NDArray[np.int64] | None = None

    def set_poll(self, poll: Callable[[], None]) -> None:
        """Call `poll` before each sample."""
        self._maker.poll = poll

    def step_performed(self) -> None:
        """Do nothing: the position in the pass says it."""

    def release(self, pass_index: int, step: Step) -> None:
        """Do nothing: its memory is used again two steps later."""

    def plan(self, pass_index: int, number: int, own: Selection) -> Callable[[], Step]:
        planned = self.balancer.deal(own.start, own.start + len(own)).at(own)
        return partial(self._fetch, pass_index, number, planned, self.balancer.weights)

    def _fetch(self, pass_index: int, number: int, planned: StepShares, weights: tuple[float, ...]) -> Step:
        if pass_index != self._pass_index:
            self._ids = self._samples.ids_of_pass(pass_index)
            self._moments = self._samples.moments_of_pass(pass_index)
            self._pass_index = pass_index
        start, end, positions = planned.start, planned.stop, planned.positions
        training = start < self._spec.num_train
        if self._dealer is None:
            batch, seconds = self._make(number, planned.of_rank(self._rank), training)
            batch, total = self._drawn(batch, training), self._total(planned, batch)
            return Step(start, end, training, total, planned, batch, seconds, may_lack=True)
        sizes, whole, seconds = self._samples.sizes, None, 0.0
        if sizes is None:
            whole, seconds = self._make(number, Selection.of(positions), training)
            sizes = np.zeros(len(positions))  # of a broken sample: 0
            sizes[np.searchsorted(positions, _positions(whole))] = self._samples.sizes_of(
                whole.ids, list(whole.x)
            )
        else:
            sizes = sizes[self._ids[positions]]
        dealt = self._dealer.deal(planned, self._ids[positions], sizes, weights)
        mine = dealt.shares.of_rank(self._rank)
        if whole is None:
            batch, seconds = self._make(number, mine, training)
        else:
            batch = _part(whole, np.flatnonzero(np.isin(_positions(whole), mine.positions)))
        batch = self._drawn(batch, training)
        batch = replace(batch, work=dealt.work[self._rank], padding_limit=dealt.padding_limits[self._rank])
        return Step(
            start,
            end,
            training,
            self._total(planned, batch),
            dealt.shares,
            batch,
            seconds,
            planned=planned.counts,
            slowest=dealt.slowest,
            weight=None if dealt.weights is None else dealt.weights[self._rank],
            may_lack=True,
        )

    def _total(self, planned: StepShares, batch: Batch) -> int:
        """Samples of the whole step, with those that turn out to be broken on other ranks."""
        return sum(planned.counts) if len(planned.counts) > 1 else len(batch)

    def _make(self, number: int, mine: Selection, training: bool) -> tuple[Batch, float]:
        """Make samples; `moments` of the batch are their positions."""
        positions = mine.positions
        partners = None
        if training and self._samples.mixes:
            positions, partners = self._with_partners(positions)
        return self._maker.make(
            list(zip(self._ids[positions].tolist(), self._draws(positions, training).tolist(), strict=True)),
            training=training,
            out=self._buffers.of(number, len(mine)),
            partner_of=partners,
            moments=mine.positions,
        )

    def _draws(self, positions: NDArray[np.int64], training: bool) -> NDArray[np.int64]:
        """Return the moments for the random operations of `preprocessing`."""
        if training and self._moments is not None:
            return self._moments[positions]
        return np.full(len(positions), self._pass_index)

    def _drawn(self, batch: Batch, training: bool) -> Batch:
        """A batch of `_make` with its real moments."""
        positions = _positions(batch)
        if self._repeats:
            return replace(batch, moments=positions + self._pass_index * self._spec.num_positions)
        return replace(batch, moments=self._draws(positions, training))

    def _with_partners(self, positions: NDArray[np.int64]) -> tuple[NDArray[np.int64], list[int]]:
        """The positions and those of their partners, and the place of each partner; see `BlockComposer`."""
        size = self._spec.block_samples
        partners = positions + 1
        is_last = (partners % size == 0) | (partners == self._spec.num_train)
        partners = np.where(is_last, positions - positions % size, partners)
        more = np.setdiff1d(partners, positions)
        place = {position: i for i, position in enumerate([*positions.tolist(), *more.tolist()])}
        return np.concatenate([positions, more]), [place[partner] for partner in partners.tolist()]


def _positions(batch: Batch) -> NDArray[np.int64]:
    """The positions of the whole samples in a batch of `_make`."""
    assert batch.moments is not None
    return batch.moments


def _part(batch: Batch, places: NDArray[np.int64]) -> Batch:
    """Some samples of a batch whose samples differ in size, in this order."""
    assert batch.moments is not None
    x = [batch.x[place] for place in places.tolist()]
    return Batch(batch.ids[places], x, batch.y[places], moments=batch.moments[places])
