"""The dataset of bench_step_overhead.py: random images in memory that take time to move."""

from __future__ import annotations

import numpy as np

from hpcbal.data.datasets.small_sets import InMemoryDataset


def random_images(num_samples: int, height: int, width: int) -> InMemoryDataset:
    """`num_samples` images (height, width, 3) uint8 of 10 classes; the same in every process."""
    rng = np.random.default_rng(0)
    images = rng.integers(0, 256, (num_samples, height, width, 3), np.uint8)
    return InMemoryDataset("random images", images, np.arange(num_samples) % 10)
