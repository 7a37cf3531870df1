"""The network of bench_lbbsp_partitioned.py: small enough for two cores, and without batch normalisation.

Batch normalisation would also compare ways to normalise, not only how often samples are seen.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any


def cnn(input_shape: Sequence[int], num_classes: int) -> Any:
    """Two convolutions and two dense layers; 52,000 weights for images of 28x28 pixels."""
    import keras
    from keras import layers

    return keras.Sequential(
        [
            keras.Input(tuple(input_shape)),
            layers.Conv2D(16, 3, strides=2, activation="relu", padding="same"),
            layers.Conv2D(32, 3, strides=2, activation="relu", padding="same"),
            layers.Flatten(),
            layers.Dense(64, activation="relu"),
            layers.Dense(num_classes),
        ]
    )
