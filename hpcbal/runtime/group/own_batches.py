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

    Args:
        spec: of the samples.
        maker: makes the batches.
        batch_size: samples per step, over the whole group.
        rank: this trainer's rank in its group.
        balancer: splits each step over the group.
        dealer: decides who takes which samples where the dataset declares their sizes; None: each rank takes
            neighbours.
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
        self._dealer = dealer if maker.samples.sizes is not None else None
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

    def plan(self, pass_index: int, number: int, start: int, end: int) -> Callable[[], Step]:
        planned = self.balancer.deal(start, end)
        return partial(self._fetch, pass_index, number, planned, self.balancer.weights)

    def _fetch(self, pass_index: int, number: int, planned: StepShares, weights: tuple[float, ...]) -> Step:
        if pass_index != self._pass_index:
            self._ids = self._samples.ids_of_pass(pass_index)
            self._moments = self._samples.moments_of_pass(pass_index)
            self._pass_index = pass_index
        start, end = planned.start, planned.stop
        training = start < self._spec.num_train
        dealt = None
        if self._dealer is not None:
            assert self._samples.sizes is not None
            ids = self._ids[start:end]
            dealt = self._dealer.deal(planned, ids, self._samples.sizes[ids], weights)
        shares = planned if dealt is None else dealt.shares
        mine = shares.of_rank(self._rank)
        batch, seconds = self._make(number, mine, training)
        total = end - start if len(planned.counts) > 1 else len(batch)
        step = Step(start, end, training, total, shares, batch, seconds, may_lack=True)
        if dealt is None:
            return step
        return replace(
            step,
            batch=replace(batch, work=dealt.work[self._rank], padding_limit=dealt.padding_limits[self._rank]),
            planned=planned.counts,
            slowest=dealt.slowest,
            weight=None if dealt.weights is None else dealt.weights[self._rank],
        )

    def _make(self, number: int, mine: Selection, training: bool) -> tuple[Batch, float]:
        positions = mine.positions
        partners = None
        if training and self._samples.mixes:
            positions, partners = self._with_partners(positions)
        ids, moments = self._ids[positions].tolist(), [self._pass_index] * len(positions)
        if training and self._moments is not None:
            moments = self._moments[positions].tolist()
        return self._maker.make(
            list(zip(ids, moments, strict=True)),
            training=training,
            out=self._buffers.of(number, len(mine)),
            partner_of=partners,
            moments=mine.positions + self._pass_index * self._spec.num_positions if self._repeats else None,
        )

    def _with_partners(self, positions: NDArray[np.int64]) -> tuple[NDArray[np.int64], list[int]]:
        """The positions and those of their partners, and the place of each partner; see `BlockComposer`."""
        size = self._spec.block_samples
        partners = positions + 1
        is_last = (partners % size == 0) | (partners == self._spec.num_train)
        partners = np.where(is_last, positions - positions % size, partners)
        more = np.setdiff1d(partners, positions)
        place = {position: i for i, position in enumerate([*positions.tolist(), *more.tolist()])}
        return np.concatenate([positions, more]), [place[partner] for partner in partners.tolist()]
