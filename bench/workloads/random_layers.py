"""A Keras model whose training depends on all that a checkpoint must hold, for soak_kills.py.

Dropout draws from a saved state, batch normalisation moves statistics, Adam has moments and a count of steps.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import keras


def dropping(input_shape: tuple[int, ...], num_classes: int, rate: float = 0.3) -> keras.Model:
    """Make a small network with batch normalisation and dropout; its outputs are logits."""
    import keras  # imported here: only a rank that trains needs it

    return keras.Sequential(
        [
            keras.Input(input_shape),
            keras.layers.Dense(16, activation="relu"),
            keras.layers.BatchNormalization(),
            keras.layers.Dropout(rate),
            keras.layers.Dense(16, activation="relu"),
            keras.layers.GaussianNoise(0.1),
            keras.layers.Dense(num_classes),
        ]
    )
