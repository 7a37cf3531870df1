"""The network of bench_lbbsp_statistics.py without batch normalisation."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import keras


def cnn(input_shape: tuple[int, int, int], num_classes: int) -> keras.Model:
    """Two convolutions and a dense layer: the output for a sample does not depend on other samples."""
    from keras import Sequential, layers

    return Sequential(
        [
            layers.Input(input_shape),
            layers.Conv2D(16, 3, padding="same", activation="relu"),
            layers.MaxPooling2D(2),
            layers.Conv2D(32, 3, padding="same", activation="relu"),
            layers.GlobalAveragePooling2D(),
            layers.Dense(num_classes),
        ]
    )
