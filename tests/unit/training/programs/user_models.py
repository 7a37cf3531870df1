"""Models as users write them, right and wrong."""

from __future__ import annotations

import sys
from typing import Any

import keras
from keras import layers


def ending(input_shape: tuple[int, ...], num_classes: int, *end: Any, activation: str | None = None) -> Any:
    """A small classifier, with these layers at its end."""
    body = [layers.Flatten(), layers.Dense(8, activation="relu"), layers.Dense(num_classes, activation)]
    return keras.Sequential([keras.Input(input_shape), *body, *end])


def plain(input_shape: tuple[int, ...], num_classes: int) -> Any:
    return ending(input_shape, num_classes)


def unbuilt(input_shape: tuple[int, ...], num_classes: int) -> Any:
    return keras.Sequential([layers.Flatten(), layers.Dense(num_classes)])


def relu_dense(input_shape: tuple[int, ...], num_classes: int) -> Any:
    return ending(input_shape, num_classes, activation="relu")


def tanh_activation(input_shape: tuple[int, ...], num_classes: int) -> Any:
    return ending(input_shape, num_classes, layers.Activation("tanh"), layers.Dropout(0.1))


def leaky_layer(input_shape: tuple[int, ...], num_classes: int) -> Any:
    return ending(input_shape, num_classes, layers.LeakyReLU())


def relu_function(input_shape: tuple[int, ...], num_classes: int) -> Any:
    image = keras.Input(input_shape)
    return keras.Model(image, keras.ops.relu(ending(input_shape, num_classes)(image)))


def softmax_dense(input_shape: tuple[int, ...], num_classes: int) -> Any:
    return ending(input_shape, num_classes, activation="softmax")


def sigmoid_dense(input_shape: tuple[int, ...], num_classes: int) -> Any:
    return ending(input_shape, num_classes, activation="sigmoid")


def softmax_layer(input_shape: tuple[int, ...], num_classes: int) -> Any:
    return ending(input_shape, num_classes, layers.Softmax(), layers.Dropout(0.1))


def softmax_function(input_shape: tuple[int, ...], num_classes: int) -> Any:
    image = keras.Input(input_shape)
    return keras.Model(image, keras.ops.softmax(ending(input_shape, num_classes)(image)))


def softmax_inside(input_shape: tuple[int, ...], num_classes: int) -> Any:
    image = keras.Input(input_shape)
    return keras.Model(image, layers.Activation("linear")(softmax_dense(input_shape, num_classes)(image)))


def softmax_lambda(input_shape: tuple[int, ...], num_classes: int) -> Any:
    return ending(input_shape, num_classes, layers.Lambda(lambda x: keras.ops.softmax(x)))


def log_softmax(input_shape: tuple[int, ...], num_classes: int) -> Any:
    return ending(input_shape, num_classes, activation="log_softmax")


def shares_as_bias(input_shape: tuple[int, ...], num_classes: int) -> Any:
    """Its first outputs sum to one by chance: the last layer starts with the shares of the classes."""
    bias = keras.initializers.Constant(1.0 / num_classes)
    head = layers.Dense(num_classes, kernel_initializer="zeros", bias_initializer=bias)
    return keras.Sequential(
        [keras.Input(input_shape), layers.Flatten(), layers.Dense(4), head, layers.Lambda(lambda x: x)]
    )


def without_return(input_shape: tuple[int, ...], num_classes: int) -> None:
    ending(input_shape, num_classes)


def dictionary(input_shape: tuple[int, ...], num_classes: int) -> Any:
    image = keras.Input(input_shape)
    return keras.Model(image, {"logits": ending(input_shape, num_classes)(image)})


def two_inputs(input_shape: tuple[int, ...], num_classes: int) -> Any:
    images = [keras.Input(input_shape), keras.Input(input_shape)]
    return keras.Model(images, ending(input_shape, num_classes)(layers.Add()(images)))


def other_input(input_shape: tuple[int, ...], num_classes: int) -> Any:
    return ending((28, 28, 1), num_classes)


def half_precision(input_shape: tuple[int, ...], num_classes: int) -> Any:
    keras.config.set_dtype_policy("mixed_float16")
    return ending(input_shape, num_classes)


def compiled(input_shape: tuple[int, ...], num_classes: int) -> Any:
    model = ending(input_shape, num_classes)
    model.compile("adam", "mse")
    return model


def exits(input_shape: tuple[int, ...], num_classes: int) -> Any:
    sys.exit("no licence")


class Subclassed(keras.Model):
    """Its layers are built by its first call."""

    def __init__(self, input_shape: tuple[int, ...], num_classes: int, width: int = 8) -> None:
        super().__init__()
        self.flatten = layers.Flatten()
        self.hidden = layers.Dense(width, activation="relu")
        self.dropout = layers.Dropout(0.5)
        self.head = layers.Dense(num_classes)

    def call(self, x: Any, training: bool = False) -> Any:
        return self.head(self.dropout(self.hidden(self.flatten(x)), training=training))


class WithoutTraining(Subclassed):
    """Its `call` takes no `training`, as in many tutorials."""

    def call(self, x: Any) -> Any:  # type: ignore[override]
        return self.head(self.dropout(self.hidden(self.flatten(x))))


class SubclassedSoftmax(Subclassed):
    def call(self, x: Any, training: bool = False) -> Any:
        return keras.ops.softmax(super().call(x, training))


class OwnTrainStep(Subclassed):
    def train_step(self, data: Any) -> Any:
        raise AssertionError("never called")


class LayersInCall(keras.Model):
    def __init__(self, input_shape: tuple[int, ...], num_classes: int) -> None:
        super().__init__()
        self.num_classes = num_classes

    def call(self, x: Any) -> Any:
        return layers.Dense(self.num_classes)(layers.Flatten()(x))


class TwoOutputs(Subclassed):
    def call(self, x: Any, training: bool = False) -> Any:
        return [super().call(x, training)] * 2


class Raises(Subclassed):
    def call(self, x: Any, training: bool = False) -> Any:
        raise RuntimeError(f"cannot use these values:\n  {x.numpy().ravel()[:4]}\nthe end")


class RaisesInGraph(Subclassed):
    """Works on samples, but not where TensorFlow traces it."""

    def call(self, x: Any, training: bool = False) -> Any:
        return super().call(x * float(x.numpy().mean()), training)


class Embeds(keras.Model):
    """Samples are indices: only 0 and 1 exist."""

    def __init__(self, input_shape: tuple[int, ...], num_classes: int) -> None:
        super().__init__()
        self.embed = layers.Embedding(2, num_classes)

    def call(self, x: Any) -> Any:
        return keras.ops.mean(self.embed(keras.ops.reshape(x, (-1, 36))), axis=1)


class _Block(layers.Layer):
    """A layer with dropout and batch normalisation inside, whose `call` does not mention training."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = layers.BatchNormalization()
        self.dropout = layers.Dropout(0.5)

    def call(self, x: Any) -> Any:
        return self.dropout(self.norm(x))


def with_block(input_shape: tuple[int, ...], num_classes: int) -> Any:
    body = [layers.Flatten(), layers.Dense(8), _Block(), layers.Dense(num_classes)]
    return keras.Sequential([keras.Input(input_shape), *body])
