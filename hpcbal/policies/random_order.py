"""Order DNNs that train on one GPU each: at random, or the longest first; the same in every run."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence

from hpcbal.policies.rates import RateTable


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
    """Order DNNs that train without each other: the one that needs the longest on one GPU comes first.

    Args:
        epochs_left: epochs that each DNN may still train.
        rates: if the rate of a DNN on one GPU is missing, the order is random.
        seed: seed of the run; it also orders DNNs that need equally long.
    """
    order = random_order(list(epochs_left), seed)
    if not all(rates.is_measured(dnn_id, 1) for dnn_id in order):
        return order
    return tuple(sorted(order, key=lambda dnn_id: -epochs_left[dnn_id] / rates.rate(dnn_id, 1)))
