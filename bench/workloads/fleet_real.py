"""The dataset of bench_fleet_real.py: points that cost almost nothing to move, so steps set the pace."""

from __future__ import annotations

import numpy as np

from hpcbal.data.datasets.small_sets import InMemoryDataset


def points(num_samples: int, num_features: int) -> InMemoryDataset:
    """`num_samples` points (num_features,) float32 of 10 classes; the same in every process."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(num_samples, num_features)).astype(np.float32)
    return InMemoryDataset("points", x, np.arange(num_samples) % 10)
