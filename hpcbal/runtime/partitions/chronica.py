"""CHRONICA at run time: ranks choose samples from their parts, each once per pass, and level the parts."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hpcbal.policies.partitioning import NO_PART, Migration, Samples, after_draw, migration_to
from hpcbal.policies.samples.chronica import EpochQueues, Indicators, shuffle
from hpcbal.policies.selection import Selection, StepShares
from hpcbal.runtime.balance.dealing import Dealer
from hpcbal.runtime.balance.step import Step
from hpcbal.runtime.partitions.batches import PartBatches
from hpcbal.runtime.partitions.part import Parts

Sizes = NDArray[np.float64]

_LEAST_WEIGHT = 1e-12
"""Smallest weight as a share of the largest one: a rank that should get no work counts as very slow."""

_PIVOTS = 0xC402
"""Separates the random stream from others with the same seed."""


class ChronicaParts(Parts):
    """Parts whose samples are chosen by size; see `Parts`.

    All ranks know all sizes, so each of them computes what all ranks draw. A rank counts as fast as its
    weight says: the part of a step's work that the balancer gives it.

    Args:
        sizes: of the training samples, by index, > 0.
        weights: returns the ranks' weights; asked at the same moments on all ranks.
        steps_per_pass: training steps of a pass.

    Source: [CHRONICA] Sec. V, Alg. 2 and 3.
    """

    def __init__(
        self, *args: Any, sizes: Sizes, weights: Callable[[], Sequence[float]], steps_per_pass: int
    ) -> None:
        super().__init__(*args)
        self._sizes = sizes
        self._weights = weights
        self._steps_per_pass = steps_per_pass
        self._queues: EpochQueues | None = None

    def draw_step(self, pass_index: int, num_samples: int) -> list[Samples]:
        """Plan a training step; called at the same moments on all ranks.

        Returns: numbers of the training samples that each rank draws; fewer than `num_samples` at the end of
            a pass that has broken samples.
        """
        before = self._planned
        if self._queues is None:
            owner = before.owner.astype(np.int64)
            if before.left is not None:
                owner[~before.left] = NO_PART
            seed = (self._seed, _PIVOTS, pass_index)
            self._queues = EpochQueues(self._sizes, owner, before.num_parts, seed)
        drawn = self._queues.draw(self._indicators(), num_samples)
        self._planned = after_draw(before, drawn)
        self._under_way.append(self._planned)
        self._is_decided = False
        return drawn

    def begin_pass(self) -> None:
        super().begin_pass()
        self._planned = replace(self._planned, left=None)
        self._queues = None

    def _decide(self) -> Migration | None:
        if not any(self._planned.drawn):
            return None
        before = self._planned
        owner = shuffle(self._sizes, before.owner.astype(np.int64), self._indicators(), self._steps_per_pass)
        return migration_to(before, owner)

    def _indicators(self) -> Indicators:
        weights = np.array(self._weights(), np.float64)
        weights = np.maximum(weights, _LEAST_WEIGHT * float(weights.max()))
        return Indicators(float(weights.max()) / weights, np.zeros(len(weights)))


class ChronicaBatches(PartBatches):
    """Batches of a rank that draws as `ChronicaParts` says; see `PartBatches`.

    Args:
        parts: this rank's view of the partition.
        sizes: of the training samples, by index, > 0.
        dealer: counts the work of each rank, and the weights of its gradients.
    """

    parts: ChronicaParts

    def __init__(self, *args: Any, sizes: Sizes, dealer: Dealer | None) -> None:
        super().__init__(*args)
        self._sizes = sizes
        self._dealer = dealer

    def plan(self, pass_index: int, number: int, own: Selection) -> Callable[[], Step]:
        start, end = own.start, own.stop
        if start >= self._spec.num_train:
            return super().plan(pass_index, number, own)
        if start == 0:
            self.parts.begin_pass()
        planned, weights = self.balancer.deal(start, end).counts, self.balancer.weights
        drawn = self.parts.draw_step(pass_index, end - start)
        return partial(self._fetch_drawn, pass_index, number, (start, end), drawn, planned, weights)

    def _fetch_drawn(
        self,
        pass_index: int,
        number: int,
        step: tuple[int, int],
        drawn: Sequence[Samples],
        planned: tuple[int, ...],
        weights: tuple[float, ...],
    ) -> Step:
        mine = self._samples.train_ids[drawn[self._rank]]
        wanted = [(sample_id, pass_index) for sample_id in mine.tolist()]
        out = self._buffers.of(number, len(wanted))
        batch, seconds = self._make(wanted, training=True, out=out)
        shares = StepShares.neighbours(step[0], [len(own) for own in drawn])
        weight, slowest = None, 0.0
        if self._dealer is not None:
            every = np.concatenate(drawn)
            dealt = self._dealer.deal(shares, self._samples.train_ids[every], self._sizes[every], weights)
            batch, slowest = replace(batch, work=dealt.work[self._rank]), dealt.slowest
            weight = None if dealt.weights is None else dealt.weights[self._rank]
        return Step(
            *step,
            True,
            sum(shares.counts),
            shares,
            batch,
            preprocessing_s=seconds,
            planned=planned,
            slowest=slowest,
            weight=weight,
        )
