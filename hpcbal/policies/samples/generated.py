"""Sizes with a chosen imbalance, for experiments."""

from __future__ import annotations

import numpy as np

from hpcbal.policies.batching.curves import FloatArray

MEAN_SIZE = 45.0
LEAST_SIZE = 1.0


def generated_sizes(num_samples: int, dif: float, seed: int) -> FloatArray:
    """Sizes from a normal distribution around `MEAN_SIZE`, kept positive, with that mean.

    Numbers below `LEAST_SIZE` are raised to it; then all are scaled back to the mean. So the measured
    imbalance is below `dif` where many are raised: about 45 for 64.

    Args:
        num_samples: >= 1.
        dif: standard deviation of the normal distribution, >= 0.
        seed: >= 0.

    Source: [CHRONICA] Sec. VI-A. The paper does not say how sizes stay positive.
    """
    random = np.random.Generator(np.random.PCG64(np.random.SeedSequence([seed])))
    sizes = np.maximum(random.normal(MEAN_SIZE, dif, num_samples), LEAST_SIZE)
    return sizes * float(MEAN_SIZE / sizes.mean())
