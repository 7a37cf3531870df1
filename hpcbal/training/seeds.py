"""Seeds of a DNN: equal on every rank and machine."""

from __future__ import annotations

import zlib

SEED_STATE = "seed_generator_state"
"""How Keras calls the state of a random layer: a seed, and a counter of draws."""

MAX_DRAWS_PER_STEP = 1024
"""A step advances that counter by this: more than any layer, even a recurrent one, draws in a step."""


def dnn_seed(seed: int, dnn_name: str, own: int | None = None) -> int:
    """A seed in 0..2**32-1 for the initial weights and random layers of `dnn_name`.

    Without a seed of its own, two DNNs of one run start differently even if their models are equal, and a DNN
    starts the same whatever else is in the ensemble. DNNs with the same `own` seed and model start equal,
    in any run.

    Args:
        seed: seed of the run.
        own: seed of the DNN, 0..2**32-1; None if it has none.
    """
    return zlib.crc32(f"{seed}/{dnn_name}".encode()) if own is None else own
