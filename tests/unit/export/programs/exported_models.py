"""Models of a user: some that Keras can load without this file, some that it cannot."""

from __future__ import annotations

from typing import Any

import keras
from keras import layers

from hpcbal.models import resnet


class Subclassed(keras.Model):
    """Layers of Keras, called in a loop, with dropout and an addition."""

    def __init__(self, input_shape: tuple[int, ...], num_classes: int) -> None:
        super().__init__()
        self.flatten = layers.Flatten()
        self.body = [layers.Dense(16, activation="relu") for _ in range(3)]
        self.norm = layers.BatchNormalization()
        self.dropout = layers.Dropout(0.5)
        self.head = layers.Dense(num_classes)

    def call(self, x: Any, training: bool = False) -> Any:
        x = self.body[0](self.flatten(x))
        for layer in self.body[1:]:
            x = x + layer(x)
        return self.head(self.dropout(self.norm(x, training=training), training=training))


class Branching(Subclassed):
    def call(self, x: Any, training: bool = False) -> Any:
        assert isinstance(x.shape[0], int | None)
        return super().call(x, training) * float(keras.ops.max(x) + 1.0 > 0.0)


class Unregistered(layers.Layer):
    def call(self, x: Any) -> Any:
        return 2.0 * x


@keras.saving.register_keras_serializable(package="users")
class Registered(layers.Layer):
    def call(self, x: Any) -> Any:
        return 3.0 * x


class Unwritable(layers.Layer):
    def __init__(self, factor: Any) -> None:
        super().__init__()
        self.factor = factor

    def call(self, x: Any) -> Any:
        return x * self.factor()


def with_layer(input_shape: tuple[int, ...], num_classes: int, layer: Any) -> Any:
    body = [layers.Flatten(), layer, layers.Dense(num_classes)]
    return keras.Sequential([keras.Input(input_shape), *body])


def unregistered(input_shape: tuple[int, ...], num_classes: int) -> Any:
    return with_layer(input_shape, num_classes, Unregistered())


def registered(input_shape: tuple[int, ...], num_classes: int) -> Any:
    return with_layer(input_shape, num_classes, Registered())


def unwritable(input_shape: tuple[int, ...], num_classes: int) -> Any:
    return with_layer(input_shape, num_classes, Unwritable(lambda: 2.0))


def with_lambda(input_shape: tuple[int, ...], num_classes: int) -> Any:
    return with_layer(input_shape, num_classes, layers.Lambda(lambda x: x * 2.0))


def own_activation(input_shape: tuple[int, ...], num_classes: int) -> Any:
    def squared(x: Any) -> Any:
        return x * x

    return with_layer(input_shape, num_classes, layers.Dense(4, activation=squared))


def nested(input_shape: tuple[int, ...], num_classes: int) -> Any:
    """A synchronised network inside another one."""
    images = keras.Input(input_shape)
    features = resnet(input_shape, 12, depth=8, width=4, batch_norm="sync")(images)
    return keras.Model(images, layers.Dense(num_classes)(features))


def lstm(input_shape: tuple[int, ...], num_classes: int) -> Any:
    return keras.Sequential([keras.Input(input_shape), layers.LSTM(4), layers.Dense(num_classes)])
