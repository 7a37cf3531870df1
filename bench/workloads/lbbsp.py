"""Data and network of the LB-BSP benches: the CPU time of a step is nearly proportional to its samples."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from hpcbal.data.datasets.small_sets import InMemoryDataset

if TYPE_CHECKING:
    import keras


def images(num_samples: int, pixels: int = 24) -> InMemoryDataset:
    """`num_samples` random images (pixels, pixels, 3) float32 of 10 classes; the same in every process."""
    rng = np.random.default_rng(0)
    x = rng.standard_normal((num_samples, pixels, pixels, 3), np.float32)
    return InMemoryDataset("images", x, np.arange(num_samples) % 10)


def convolutions(input_shape: tuple[int, int, int], num_classes: int, channels: int = 32) -> keras.Model:
    """Three convolutions and a classifier with logits: few operations, so a step has almost no floor."""
    from keras import Input, Model, layers

    inputs = Input(input_shape, name="image")
    x = inputs
    for layer in range(3):
        x = layers.Conv2D(channels, 3, padding="same", activation="relu", name=f"conv{layer}")(x)
    x = layers.GlobalAveragePooling2D(name="pool")(x)
    return Model(inputs, layers.Dense(num_classes, name="logits")(x), name="convolutions")
