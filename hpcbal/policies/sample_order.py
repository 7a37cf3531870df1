"""Shuffle the training samples of a pass, in the same way on every cluster."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from hpcbal.errors import PolicyError


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
