"""Models that the training tests refer to by import path."""

from __future__ import annotations

import time
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


def linear_module(input_shape: tuple[int, ...], num_classes: int) -> Any:
    """The same in PyTorch."""
    from torch import nn

    height, width = (length - 2 for length in input_shape[1:])
    return nn.Sequential(
        nn.Conv2d(input_shape[0], 3, 3),
        nn.Tanh(),
        nn.Flatten(),
        nn.Linear(3 * height * width, num_classes),
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


def pooled(input_shape: tuple[int, ...], num_classes: int) -> Any:
    """A small network with batch norm, whose weights have the same meaning whatever the order of axes."""
    from keras import Sequential, layers

    return Sequential(
        [
            layers.Input(input_shape),
            layers.Conv2D(3, 3, activation="tanh"),
            layers.BatchNormalization(),
            layers.GlobalAveragePooling2D(),
            layers.Dense(num_classes),
        ]
    )


def _two_branches(input_shape: tuple[int, ...], num_classes: int, norm: Any) -> Any:
    """Batch norm in two branches that do not depend on each other, and once after them."""
    from keras import Input, Model, layers

    image = Input(input_shape)
    left = norm(momentum=0.8)(layers.Conv2D(3, 3)(image))
    right = norm(momentum=0.9, axis=1)(layers.Conv2D(4, 3)(image))
    both = layers.Concatenate()([layers.ReLU()(left), layers.Activation("tanh")(right)])
    x = norm(scale=False)(layers.Dense(6)(layers.Flatten()(both)))
    return Model(image, layers.Dense(num_classes)(x))


def synchronised(input_shape: tuple[int, ...], num_classes: int) -> Any:
    """A network whose batch norm is over all ranks."""
    from hpcbal.models.sync_batch_norm import SyncBatchNormalization

    return _two_branches(input_shape, num_classes, SyncBatchNormalization)


def plain_twin(input_shape: tuple[int, ...], num_classes: int) -> Any:
    """The same network with Keras' own batch norm."""
    from keras import layers

    return _two_branches(input_shape, num_classes, layers.BatchNormalization)


ARMED: dict[str, Any] = {"wire": None, "backward": False, "error": None}
"""Which tripwire raises an error, or sleeps some seconds, on the way forward or backward, in this process."""


def _trip(wire: str, backward: bool) -> None:
    if (ARMED["wire"], ARMED["backward"]) == (wire, backward):
        if isinstance(ARMED["error"], float):
            time.sleep(ARMED["error"])
        else:
            raise ARMED["error"]


def tripwires(input_shape: tuple[int, ...], num_classes: int) -> Any:
    """Synchronised batch norm with layers around it that fail on request, while the step runs."""
    import tensorflow as tf
    from keras import Input, Model, layers

    from hpcbal.models.sync_batch_norm import SyncBatchNormalization

    class Wire(layers.Layer):
        def call(self, x: Any, training: bool = False) -> Any:
            if training:
                _trip(f"trace {self.name}", False)  # once, while TensorFlow traces
            return tf.custom_gradient(lambda x: (self._pass(x, False), lambda dy: self._pass(dy, True)))(x)

        def _pass(self, x: Any, backward: bool) -> Any:
            def through(array: np.ndarray) -> np.ndarray:
                _trip(self.name, backward)
                return array

            same = tf.numpy_function(through, [x], x.dtype)
            same.set_shape(x.shape)
            return same

    image = Input(input_shape)
    x = Wire(name="before")(layers.Conv2D(3, 3)(image))
    x = layers.Concatenate()([SyncBatchNormalization()(x), Wire(name="beside")(x)])
    x = layers.Flatten()(Wire(name="between")(x))
    x = Wire(name="after")(SyncBatchNormalization()(layers.Dense(6)(x)))
    return Model(image, layers.Dense(num_classes)(x))


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


def unmasked(input_shape: tuple[int | None, ...], num_classes: int) -> Any:
    """A network over series with a layer that ignores masks."""
    from keras import Sequential, layers

    return Sequential(
        [
            layers.Input(input_shape),
            layers.Conv1D(3, 3),
            layers.GlobalAveragePooling1D(),
            layers.Dense(num_classes),
        ]
    )


def maskless(input_shape: tuple[int | None, ...], num_classes: int) -> Any:
    """A network over series whose call takes no mask."""
    from keras import Model, layers, ops

    class Maskless(Model):
        def __init__(self) -> None:
            super().__init__()
            self.classify = layers.Dense(num_classes)

        def call(self, x: Any) -> Any:
            return self.classify(ops.mean(x, axis=1))

    return Maskless()


def masked(input_shape: tuple[int | None, ...], num_classes: int, mask: str) -> Any:
    """A network over series whose call does not work without a mask."""
    from keras import Model, layers, ops

    class Masked(Model):
        def __init__(self) -> None:
            super().__init__()
            self.classify = layers.Dense(num_classes)

        def call(self, x: Any, mask: Any) -> Any:
            return self.classify(ops.sum(x * ops.cast(mask, x.dtype)[..., None], axis=1))

    class MaskedByDefault(Masked):
        def call(self, x: Any, mask: Any = None) -> Any:
            return super().call(x, mask)

    return Masked() if mask == "required" else MaskedByDefault()


def wide(input_shape: tuple[int | None, ...], num_classes: int) -> Any:
    """A convolution over 64 time steps, which no shorter series can fill."""
    import keras

    inputs = keras.Input(input_shape)
    features = keras.layers.Conv1D(2, 64)(inputs)
    return keras.Model(inputs, keras.layers.Dense(num_classes)(keras.layers.GlobalMaxPooling1D()(features)))
