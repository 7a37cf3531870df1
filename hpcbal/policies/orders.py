"""Random orders of samples and DNNs that are the same in every run."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt

from hpcbal.errors import PolicyError
from hpcbal.policies.rates import RateTable

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
