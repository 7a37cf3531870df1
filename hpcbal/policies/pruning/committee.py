"""Stop DNNs whose further training is predicted not to improve the committee that is chosen in the end."""

from __future__ import annotations

import functools
import math
import random
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from statistics import NormalDist

import numpy as np
from numpy.typing import NDArray

from hpcbal.ensembling.answers import TINY
from hpcbal.ensembling.selection import MOST_ROUNDS, KnownPredictions, Loss, greedy_selection
from hpcbal.errors import InputError
from hpcbal.policies.loss_curve import future_log_loss
from hpcbal.policies.pruning.rules import Candidate, Ruling

NUM_FUTURES = 32
"""Futures in which committees are compared."""

MOST_ROWS = 24
"""The greedy selection in each of them is among so many, at most: those that are best alone."""

LEAST_RATIO = 0.05
"""A loss is not taken to fall below this part of what it is."""

DRIFT, SHARED = 1.25, 0.3
"""How much the logarithm of an item's loss moves, as a standard deviation times the root of the logarithm of
how many times as many epochs there are in the end; and the part of this variance that all DNNs share."""

_LEVELS = tuple(NormalDist().inv_cdf((future + 0.5) / NUM_FUTURES) for future in range(NUM_FUTURES))
"""How many standard deviations a loss is off in the futures, in rising order."""

_Array = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Committee:
    """Stop a DNN if the committee in the end is predicted to be as good without its further training.

    First every DNN trains `min_epochs`, and waits until all others have. From then on DNNs are judged
    after every epoch; those that join later hold up nobody who has trained more. What each would predict
    in the end is not known, so it is drawn: the loss curve of its predictions is extrapolated to its
    max_epochs, with the uncertainty of that; the losses of its items move at random (`DRIFT`), and are
    scaled to the loss that was drawn. In each of `NUM_FUTURES` such futures, the committee is the greedy
    selection among all DNNs as they are now and as they would be in the end. One after another, the
    further training of the DNN that these committees weigh least is given up, as long as their losses
    rise by no more than `tolerance` in the mean.

    A DNN that is given up is paused while others train on: if these turn out worse than predicted, it goes
    on. Once the committee needs no DNN to train on, all that are left are pruned.

    A DNN counts with its best epoch by its monitored metric, because that is what it would deliver. It stays
    in the committee after it has converged or was pruned, but not if it fails. DNNs whose predictions are not
    known, such as those of an earlier start without this rule, are not judged.

    Args:
        min_epochs: epochs before which no DNN is judged, >= 1.
        tolerance: by how much the predicted loss of the committee may rise without the training that is given
            up, as a share of it, 0 to 1.

    Raises:
        InputError: if an argument is out of range.

    Source: [CARUANA] Sec. 2.1 for committees, [DOMHAN] for stopping by extrapolated curves; put together
        here.
    """

    min_epochs: int = 1
    tolerance: float = 0.005

    def __post_init__(self) -> None:
        if self.min_epochs < 1:
            raise InputError(f"prune.min_epochs: got {self.min_epochs}, allowed: a whole number, 1 or more")
        if not 0.0 <= self.tolerance <= 1.0:
            raise InputError(f"prune.tolerance: got {self.tolerance}, allowed: 0 to 1")

    @property
    def needs_evidence(self) -> bool:
        return True

    def rule(self, candidates: Sequence[Candidate]) -> Ruling:
        """See `PruneRule.rule`."""
        standing = {c.name: c.epochs for c in candidates if _stands(c) and c.epochs >= self.min_epochs}
        num_coming = sum(c.is_live and c.epochs < min(self.min_epochs, c.max_epochs) for c in candidates)
        wait = {n: epochs for n, epochs in standing.items() if num_coming and epochs == self.min_epochs}
        reasons = {n: f"after epoch {epochs}, {num_coming} to come" for n, epochs in wait.items()}
        judged = standing.keys() - wait.keys()
        futures = Futures.of(candidates) if judged else None
        if futures is None:
            return Ruling(reasons)
        spare = futures.give_up(judged, self.tolerance)
        reasons |= {n: f"the committee needs no more than its epoch {standing[n]}" for n in spare}
        goes_on = any(c.is_live and c.name not in reasons for c in candidates)
        return Ruling(reasons) if goes_on else Ruling({}, reasons)


def _stands(candidate: Candidate) -> bool:
    """Whether it would train on, and has not begun to."""
    return candidate.is_live and not candidate.is_begun and candidate.epochs < candidate.max_epochs


class Futures:
    """The committees that would be chosen in the end, in several futures.

    Args:
        names: DNNs whose predictions are known.
        now: their predictions in their best epochs, see `hpcbal.ensembling.Evidence`; shape (num_dnns, n).
        ends: predictions in the end of those that may train on, by index; shape (NUM_FUTURES, n) each.
        loss: of combined predictions.
    """

    def __init__(self, names: Sequence[str], now: _Array, ends: Mapping[int, _Array], loss: Loss) -> None:
        self._names = list(names)
        self._now = now
        self._ends = ends
        self._loss = loss
        self._going = list(ends)
        self._chosen = [self._committee(future, self._going) for future in range(NUM_FUTURES)]

    @classmethod
    def of(cls, candidates: Sequence[Candidate]) -> Futures | None:
        """Return the futures of these DNNs; None if no predictions are known."""
        known = KnownPredictions.of({c.name: (c.values, c.evidence) for c in candidates if not c.has_failed})
        if known is None:
            return None
        members = [c for c in candidates if c.name in known.best]
        now, scale = known.rows, _ERRORS if known.are_errors else _PROBABILITIES
        shared = _normal("", now.shape[1])
        least = min(float(scale.losses(row).mean()) for row in now)
        ends = {
            index: _ends(c, known.by_epoch[c.name], known.best[c.name], now[index], scale, shared, least)
            for index, c in enumerate(members)
            if c.is_live and c.epochs < c.max_epochs
        }
        return cls([c.name for c in members], now, ends, known.loss)

    def give_up(self, judged: Collection[str], tolerance: float) -> list[str]:
        """Give up the further training of DNNs that the committees do not need, and return their names.

        Args:
            judged: the DNNs that may be given up.
            tolerance: by how much the losses of the committees may rise, as a share of each, in the mean.
        """
        before = [chosen.loss for chosen in self._chosen]
        given_up: list[int] = []
        while open_ := [index for index in self._going if self._names[index] in judged]:
            shares = {index: math.fsum(c.shares.get(index, 0.0) for c in self._chosen) for index in open_}
            idle = [index for index in open_ if not shares[index]]
            if not idle:
                idle = [min(open_, key=lambda index: shares[index])]
                without = self._without(idle[0])
                if mean_rise(before, without) > tolerance:
                    break
                self._chosen = without
            self._going = [index for index in self._going if index not in idle]
            given_up += idle
        return [self._names[index] for index in sorted(given_up)]

    def _committee(self, future: int, going: Sequence[int]) -> Chosen:
        """The committee of a future, among all DNNs as they are now, and those of `going` in the end."""
        rows = np.concatenate([self._now, *(self._ends[index][future : future + 1] for index in going)])
        kept = np.sort(np.argsort(self._loss(rows), kind="stable")[:MOST_ROWS])
        found = greedy_selection(rows[kept], self._loss, MOST_ROUNDS)
        weights = {int(row) - len(self._now): w for row, w in zip(kept, found.weights, strict=True) if w}
        return Chosen(found.loss, {going[row]: weight for row, weight in weights.items() if row >= 0})

    def _without(self, index: int) -> list[Chosen]:
        """The committees if a DNN did not train on."""
        going = [each for each in self._going if each != index]
        return [
            self._committee(future, going) if index in chosen.shares else chosen
            for future, chosen in enumerate(self._chosen)
        ]


@dataclass(frozen=True, slots=True)
class Chosen:
    """A committee: its loss, and the weights of DNNs in the end, above 0."""

    loss: float
    shares: Mapping[int, float]


def mean_rise(before: Sequence[float], after: Sequence[Chosen]) -> float:
    """By how much losses rise, as a share of each, in the mean; from 0, any rise is without bound."""
    rises = [
        new.loss / old - 1.0 if old > 0.0 else math.inf if new.loss > 0.0 else 0.0
        for old, new in zip(before, after, strict=True)
    ]
    return math.fsum(rises) / len(before)


@dataclass(frozen=True, slots=True)
class _Scale:
    """Evidence of one kind.

    Attributes:
        losses: the losses of items, from their evidence.
        evidence: evidence with other losses, from the losses and the evidence before.
    """

    losses: Callable[[_Array], _Array]
    evidence: Callable[[_Array, _Array], _Array]


_PROBABILITIES = _Scale(
    lambda row: -np.log(np.maximum(row, TINY)),
    lambda losses, row: np.exp(-losses),
)
_ERRORS = _Scale(
    np.square,
    lambda losses, row: np.sign(row) * np.sqrt(losses),
)


def _ends(
    candidate: Candidate,
    rows: Mapping[int, _Array],
    best: int,
    now: _Array,
    scale: _Scale,
    shared: _Array,
    least: float,
) -> _Array:
    """Return what a DNN would predict after max_epochs, shape (NUM_FUTURES, n).

    Args:
        rows: its predictions by epoch, from 0.
        best: the epoch of `now`.
        now: its predictions for the n items that all DNNs have.
        shared: random numbers that all DNNs share, shape (NUM_FUTURES, n).
        least: loss of the best DNN.
    """
    known = range(max(rows) + 1)
    means = [float(np.nanmean(scale.losses(rows[epoch]))) if epoch in rows else math.nan for epoch in known]
    behind = math.log(max(means[best], TINY) / max(least, TINY))
    expected, deviation = future_log_loss(means, candidate.max_epochs, behind)
    order = random.Random(candidate.name).sample(_LEVELS, NUM_FUTURES)
    losses = scale.losses(now)
    mean = float(losses.mean())
    drawn = np.exp(expected + deviation * np.array(order)) / max(means[best], TINY)
    ratios = np.clip(drawn, LEAST_RATIO, 1.0)[:, np.newaxis]
    moves = math.sqrt(SHARED) * shared + math.sqrt(1.0 - SHARED) * _normal(candidate.name, len(now))
    moved = losses * np.exp(DRIFT * math.sqrt(math.log(candidate.max_epochs / len(means))) * moves)
    moved *= ratios * mean / np.maximum(moved.mean(axis=1, keepdims=True), TINY)
    return scale.evidence(moved, now)


@functools.lru_cache(maxsize=64)
def _normal(name: str, number: int) -> _Array:
    """Random numbers of a DNN, normal, shape (NUM_FUTURES, number); read-only."""
    generator = np.random.Generator(np.random.Philox(np.random.SeedSequence(list(name.encode()))))
    numbers = generator.standard_normal((NUM_FUTURES, number))
    numbers.flags.writeable = False
    return numbers
