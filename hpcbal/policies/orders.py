"""Random orders of samples and DNNs that are the same in every run."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt

from hpcbal.errors import PolicyError
from hpcbal.policies.rates import RateTable


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
