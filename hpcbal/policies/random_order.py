"""Put DNNs into a random order that is the same in every run, for schedules that do not use rates."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence


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
