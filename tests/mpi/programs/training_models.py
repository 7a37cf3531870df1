"""Models that the training tests refer to by import path."""

from __future__ import annotations

from typing import Any

import numpy as np

from hpcbal.models import EmulatedModel


def linear(input_shape: tuple[int, ...], num_classes: int) -> Any:
    """A small network without batch norm, so that a split step equals a whole one exactly."""
    from keras import Sequential, layers

    return Sequential(
        [
            layers.Input(input_shape),
            layers.Conv2D(3, 3, activation="tanh"),
            layers.Flatten(),
            layers.Dense(num_classes),
        ]
    )


def normalised(input_shape: tuple[int, ...], num_classes: int) -> Any:
    """A small network with batch norm."""
    from keras import Sequential, layers

    return Sequential(
        [
            layers.Input(input_shape),
            layers.Conv2D(3, 3),
            layers.BatchNormalization(),
            layers.Flatten(),
            layers.Dense(num_classes),
        ]
    )


class OwnStartModel(EmulatedModel):
    """A user's model that draws its first weights from a source of its own: different on every rank."""

    def initial_parameters(self, rng: np.random.Generator) -> dict[str, np.ndarray]:
        return super().initial_parameters(np.random.default_rng())


def own_start(input_shape: tuple[int, ...], num_classes: int) -> EmulatedModel:
    return OwnStartModel(4, num_classes)


def headless(input_shape: tuple[int, ...], num_classes: int) -> Any:
    """A network that ends in features instead of logits."""
    from keras import Sequential, layers

    return Sequential([layers.Input(input_shape), layers.Flatten(), layers.Dense(num_classes + 1)])


def counting(input_shape: tuple[int, ...], num_classes: int) -> Any:
    """A network with a layer that counts, in integers, how often it is called."""
    from keras import Sequential, layers

    class Counter(layers.Layer):
        def build(self, shape: Any) -> None:
            self.calls = self.add_weight(
                shape=(), dtype="int32", initializer="zeros", trainable=False, name="calls"
            )

        def call(self, x: Any) -> Any:
            self.calls.assign_add(1)
            return x

    return Sequential([layers.Input(input_shape), Counter(), layers.Flatten(), layers.Dense(num_classes)])


def random(input_shape: tuple[int, ...], num_classes: int) -> Any:
    """A network with dropout."""
    from keras import Sequential, layers

    return Sequential(
        [layers.Input(input_shape), layers.Flatten(), layers.Dropout(0.5), layers.Dense(num_classes)]
    )
