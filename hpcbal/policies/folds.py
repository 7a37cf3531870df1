"""Which training samples each fold holds, and which positions of a pass a DNN trains and validates on.

With folds, a pass of the shared stream has three parts: the training samples in the order of the pass; all
of them once more as validation samples, fold after fold; then the validation samples that no DNN trains on.
A DNN of a fold skips the samples of its fold in the first part and is validated on them in the second one,
where they are neighbours. Every other DNN skips the second part. So all DNNs share one stream, and a sample
is read and decoded once for all of them.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from hpcbal.errors import PolicyError
from hpcbal.policies.orders import sample_order
from hpcbal.policies.selection import Selection

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
        raise PolicyError(f"k_fold: got {num_folds}, allowed: 2 to the {num_samples} training samples")
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
