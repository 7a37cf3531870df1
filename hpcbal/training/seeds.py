"""Seeds of a DNN: a function of the run's seed and the DNN's name, equal on every rank and machine."""

from __future__ import annotations

import zlib


def dnn_seed(seed: int, dnn_name: str) -> int:
    """A seed in 0..2**32-1 for the initial weights of `dnn_name`.

    Two DNNs of one run start differently even if their models are equal, and a DNN starts the same whatever
    else is in the ensemble.
    """
    return zlib.crc32(f"{seed}/{dnn_name}".encode())
