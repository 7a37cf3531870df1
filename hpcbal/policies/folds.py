"""Random orders that are the same in every run, and which training samples each fold holds.

With folds, a pass of the shared stream has three parts: the training samples in the order of the pass; all
of them once more as validation samples, fold after fold; then the validation samples that no DNN trains on.
A DNN of a fold skips the samples of its fold in the first part and is validated on them in the second one,
where they are neighbours. Every other DNN skips the second part. So all DNNs share one stream, and a sample
is read and decoded once for all of them.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from hpcbal.errors import PolicyError
from hpcbal.policies.rates import RateTable
from hpcbal.policies.selection import Selection

_BALANCED = 0xBA1A
"""Separates the order of samples within their classes from the orders of passes."""


def sample_order(num_samples: int, seed: int, pass_index: int) -> npt.NDArray[np.int64]:
    """The order in which pass `pass_index` goes through the training samples.

    The order depends only on these three numbers, not on nodes, ranks, preprocessors, trainer groups or
    earlier runs. So every DNN sees the same samples in the same order, wherever and however often it is
    stopped and resumed.

    Args:
        num_samples: >= 0.
        seed: seed of the run, >= 0.
        pass_index: passes of the shared stream are numbered from 0.

    Returns: a permutation of 0..num_samples-1, int64, shape (num_samples,).
    Raises: PolicyError: if an argument is negative.
    """
    for name, value in (("num_samples", num_samples), ("seed", seed), ("pass_index", pass_index)):
        if value < 0:
            raise PolicyError(f"{name}: got {value}, allowed: 0 or more")
    # PCG64 by name: `default_rng` may change its bit generator with a numpy release.
    generator = np.random.Generator(np.random.PCG64(np.random.SeedSequence([seed, pass_index])))
    return generator.permutation(num_samples).astype(np.int64, copy=False)


class BalancedOrder:
    """Draws of training samples in which all classes are equally frequent: samples of rare classes repeat.

    The draws of all passes are one sequence, draw t is of class t mod C. Each class goes through its samples
    in one random order, again and again. So the numbers of draws of two classes differ by at most one within
    a pass, and so do those of two samples of one class, within a pass and over all passes. A pass shuffles
    its draws. Which these are depends only on the arguments and the pass, as in `sample_order`.

    Args:
        classes: class of each training sample, -1 for one that is never drawn; shape (num_samples,).
        seed: seed of the run, >= 0.

    Raises: PolicyError: if no sample has a class.
    """

    def __init__(self, classes: npt.NDArray[np.int64], seed: int) -> None:
        generator = np.random.Generator(np.random.PCG64(np.random.SeedSequence([seed, 0, _BALANCED])))
        shuffled = generator.permutation(len(classes)).astype(np.int64, copy=False)
        shuffled = shuffled[classes[shuffled] >= 0]
        if not len(shuffled):
            raise PolicyError("classes: no sample has a class, allowed: one or more")
        self._members = shuffled[np.argsort(classes[shuffled], kind="stable")]
        _, self._counts = np.unique(classes[self._members], return_counts=True)
        self._starts = np.cumsum(self._counts) - self._counts
        self._num_draws, self._seed = len(classes), seed

    def of_pass(self, pass_index: int) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
        """Return the samples of a pass in order, and how often each was drawn before, in all passes.

        Args:
            pass_index: >= 0.

        Returns: indices of samples and numbers >= 0, int64, shape (num_samples,) each.
        """
        shuffle = sample_order(self._num_draws, self._seed, pass_index)
        turns, classes = np.divmod(pass_index * self._num_draws + shuffle, len(self._counts))
        repeats, places = np.divmod(turns, self._counts[classes])
        return self._members[self._starts[classes] + places], repeats


def random_order(dnn_ids: Sequence[str], seed: int) -> tuple[str, ...]:
    """Shuffle the DNNs.

    Args:
        dnn_ids: in any order, no repetitions.
        seed: seed of the run.

    Returns: a permutation of `dnn_ids`. Which of two DNNs comes first depends only on their names and the
    seed: it is the same after a resume, on any machine, and whichever other DNNs are left.
    Source: [FLEET] Sec. 6.1: the baseline and homogeneous training pick DNNs at random.
    """

    def key(dnn_id: str) -> bytes:
        return hashlib.sha256(f"{seed}\0{dnn_id}".encode()).digest()

    return tuple(sorted(dnn_ids, key=key))


def order_alone(epochs_left: Mapping[str, int], rates: RateTable, seed: int) -> tuple[str, ...]:
    """Order DNNs that train without each other: the one that needs the longest on one slot comes first.

    Args:
        epochs_left: epochs that each DNN may still train.
        rates: if the rate of a DNN on one slot is missing, the order is random.
        seed: seed of the run; it also orders DNNs that need equally long.
    """
    order = random_order(list(epochs_left), seed)
    if not all(rates.is_measured(dnn_id, 1) for dnn_id in order):
        return order
    return tuple(sorted(order, key=lambda dnn_id: -epochs_left[dnn_id] / rates.rate(dnn_id, 1)))


_FOLDS = 0xF01D
"""Separates the random stream from others with the same seed."""


def deal_folds(
    num_samples: int, num_folds: int, seed: int, classes: npt.NDArray[np.int64] | None = None
) -> npt.NDArray[np.int16]:
    """Return the fold of each training sample, 0..num_folds-1, shape (num_samples,).

    The samples of each class are spread evenly: its numbers in two folds differ by at most one. So do the
    sizes of two folds.

    Args:
        num_samples: >= num_folds.
        num_folds: >= 2.
        seed: seed of the run, >= 0.
        classes: class of each sample, shape (num_samples,); None: not known, or there are none.

    Raises:
        PolicyError: if a fold would be empty.
    """
    if not 2 <= num_folds <= num_samples:
        few = "leave it out, because there is 1 training sample"
        allowed = few if num_samples == 1 else f"2 to the {num_samples} training samples"
        raise PolicyError(f"k_fold: got {num_folds}, allowed: {allowed}")
    generator = np.random.Generator(np.random.PCG64(np.random.SeedSequence([seed, num_folds, _FOLDS])))
    order = generator.permutation(num_samples)
    if classes is not None:
        order = order[np.argsort(classes[order], kind="stable")]
    fold_of = np.empty(num_samples, np.int16)
    fold_of[order] = np.arange(num_samples) % num_folds
    return fold_of


def in_folds(fold_of: npt.NDArray[np.int16]) -> npt.NDArray[np.int64]:
    """Return the training samples fold after fold, int64, shape (num_samples,)."""
    return np.argsort(fold_of, kind="stable").astype(np.int64, copy=False)


@dataclass(frozen=True, slots=True, eq=False)
class PlannedStep:
    """One step of a pass before its data are there; equal on all ranks of a group.

    Attributes:
        own: the positions of its samples, at least one; those between them belong to no step.
        after: the position where the next step may begin; `own.stop` or later.
        num_before: training samples of the DNN before it in the pass; where validation begins, all.
    """

    own: Selection
    after: int
    num_before: int


class PassParts:
    """The positions of each pass that one DNN trains and is validated on.

    Args:
        num_train: training positions of a pass; they come first.
        num_positions: all positions of a pass.
        fold_of: fold of each training sample, shape (num_train,); None: without folds, all is one part.
        fold: of the DNN; None: it trains on all training samples, and skips what is there for folds.
        seed: seed of the run, for the order of passes.

    Attributes:
        num_train: samples that the DNN trains on in a pass.
    """

    def __init__(
        self,
        num_train: int,
        num_positions: int,
        fold_of: npt.NDArray[np.int16] | None = None,
        fold: int | None = None,
        seed: int = 0,
    ) -> None:
        self._all, self._end, self._seed = num_train, num_positions, seed
        self._is_own: npt.NDArray[np.bool_] | None = None
        self.num_train = num_train
        self._validation = (num_train, num_positions)
        if fold_of is not None and fold is None:
            self._validation = (2 * num_train, num_positions)
        elif fold_of is not None and fold is not None:
            self._is_own = fold_of != fold
            self.num_train = int(np.count_nonzero(self._is_own))
            start = num_train + int(np.count_nonzero(fold_of < fold))
            self._validation = (start, start + num_train - self.num_train)

    def steps(self, pass_index: int, offset: int, batch_size: int) -> list[PlannedStep]:
        """Return the steps of a pass from a position on, which is 0 or where an earlier step has ended.

        A step has `batch_size` samples, except for the last one of training and of validation.

        Args:
            pass_index: >= 0.
            offset: 0..num_positions.
            batch_size: >= 1.
        """
        found = list(self._selections(pass_index, offset, batch_size))
        ends = [own.start for own, _ in found[1:]] + [self._end]
        return [
            PlannedStep(own, after, num_before) for (own, num_before), after in zip(found, ends, strict=True)
        ]

    def most_positions(self, batch_size: int) -> int:
        """Return over how many positions the samples of a step may be spread.

        With folds it is a bound that one step in 10^15 exceeds: the mean of the negative binomial
        distribution, and eight standard deviations.
        """
        if self._is_own is None or batch_size >= self.num_train:
            return min(batch_size, self._end)
        share = self.num_train / self._all
        spread = (batch_size + 8.0 * np.sqrt(batch_size * (1.0 - share))) / share
        return min(int(np.ceil(spread)), self._all)

    def _selections(self, pass_index: int, offset: int, batch_size: int) -> Iterator[tuple[Selection, int]]:
        if offset < self._all:
            yield from self._training(pass_index, offset, batch_size)
        first, end = self._validation
        for start in range(max(offset, first), end, batch_size):
            yield Selection(start, min(start + batch_size, end)), self.num_train

    def _training(self, pass_index: int, offset: int, batch_size: int) -> Iterator[tuple[Selection, int]]:
        if self._is_own is None:
            for start in range(offset, self._all, batch_size):
                yield Selection(start, min(start + batch_size, self._all)), start
            return
        own = np.flatnonzero(self._is_own[sample_order(self._all, self._seed, pass_index)])
        num_before = int(np.searchsorted(own, offset))
        for first in range(num_before, len(own), batch_size):
            yield Selection.of(own[first : first + batch_size]), first
