"""Small networks for other tasks than naming one class: fully connected, and one output at each place."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import keras


def mlp(
    input_shape: tuple[int, ...], num_classes: int, units: int = 64, layers: int = 2, dropout: float = 0.0
) -> keras.Model:
    """Make a fully connected network; its outputs are logits, or numbers to predict.

    Args:
        input_shape: of a sample; it is flattened.
        num_classes: number of outputs.
        units: of each hidden layer, >= 1.
        layers: hidden layers, >= 0.
        dropout: share of each hidden layer that is dropped while training, 0 <= dropout < 1.

    Raises:
        ValueError: if an argument is out of range.
    """
    if units < 1 or layers < 0 or not 0.0 <= dropout < 1.0:
        raise ValueError(
            f"got units {units}, layers {layers} and dropout {dropout}, "
            "allowed: >= 1, >= 0 and 0 <= dropout < 1"
        )
    import keras  # imported here: only a rank that trains needs it

    model = keras.Sequential([keras.Input(input_shape), keras.layers.Flatten()])
    for _ in range(layers):
        model.add(keras.layers.Dense(units, activation="relu"))
        if dropout:
            model.add(keras.layers.Dropout(dropout))
    model.add(keras.layers.Dense(num_classes))
    return model


def unet(input_shape: tuple[int, ...], num_classes: int, width: int = 16, depth: int = 2) -> keras.Model:
    """Make a U-net: the logits of the classes at each pixel.

    Args:
        input_shape: (height, width, channels); height and width are multiples of 2 ** depth.
        num_classes: number of logits of a pixel.
        width: features at full size, >= 1; they double with each halving of the image.
        depth: how often the image is halved, >= 1.

    Raises:
        ValueError: if an argument is out of range.

    Source: O. Ronneberger, P. Fischer and T. Brox, "U-Net: Convolutional networks for biomedical image
        segmentation", MICCAI 2015; padded convolutions and batch normalisation instead of cropping.
    """
    if width < 1 or depth < 1:
        raise ValueError(f"got width {width} and depth {depth}, allowed: >= 1")
    if len(input_shape) != 3 or any(n is None or n % 2**depth for n in input_shape[:2]):
        raise ValueError(
            f"got samples of shape {input_shape}, allowed: (height, width, channels), with height and width "
            f"multiples of {2**depth}"
        )
    import keras

    def block(x: keras.KerasTensor, features: int) -> keras.KerasTensor:
        for _ in range(2):
            x = keras.layers.Conv2D(features, 3, padding="same", use_bias=False)(x)
            x = keras.layers.BatchNormalization()(x)
            x = keras.layers.ReLU()(x)
        return x

    x = inputs = keras.Input(input_shape)
    before = []
    for level in range(depth):
        x = block(x, width * 2**level)
        before.append(x)
        x = keras.layers.MaxPooling2D()(x)
    x = block(x, width * 2**depth)
    for level in reversed(range(depth)):
        x = keras.layers.Conv2DTranspose(width * 2**level, 2, strides=2)(x)
        x = block(keras.layers.Concatenate()([before[level], x]), width * 2**level)
    return keras.Model(inputs, keras.layers.Conv2D(num_classes, 1)(x))
