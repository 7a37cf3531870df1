"""Densely connected networks: every layer of a block sees the outputs of all layers before it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

from hpcbal.models.batch_norm import check_batch_norm, normalised
from hpcbal.models.resnet import LARGE_IMAGE_PIXELS

if TYPE_CHECKING:
    import keras

_IMAGENET_LAYERS = {
    121: (6, 12, 24, 16),
    169: (6, 12, 32, 32),
    201: (6, 12, 48, 32),
    264: (6, 12, 64, 48),
}


def densenet(
    input_shape: tuple[int, int, int],
    num_classes: int,
    depth: int,
    growth_rate: int = 12,
    num_blocks: int = 3,
    compression: float = 0.5,
    bottleneck: bool | None = None,
    stem: Literal["small", "large"] | None = None,
    batch_norm: Literal["local", "sync"] = "local",
) -> keras.Model:
    """Build a DenseNet that returns logits.

    Args:
        input_shape: (height, width, channels) of an image.
        num_classes: >= 2.
        depth: layers with weights. Small stem: `num_blocks` + 1 more than a multiple of `num_blocks` (with
            bottlenecks: of 2 * `num_blocks`), such as 10, 13, 16, 22, 40 for three blocks. Large stem: 121,
            169, 201, 264.
        growth_rate: channels that each layer adds, >= 1.
        num_blocks: dense blocks, >= 1; the image is halved between them. Large stem: always 4.
        compression: share of the channels that a transition keeps, above 0 and at most 1.
        bottleneck: whether a 1x1 convolution to 4 * `growth_rate` channels comes before each 3x3 one;
            default: only with the large stem.
        stem: "small" or "large"; default: by the image's size (`LARGE_IMAGE_PIXELS`).
        batch_norm: "local": every rank normalises by its own samples; "sync": by the samples of all ranks of
            its trainer group.

    Raises:
        ValueError: if an argument is out of range; the message says what is allowed.
    Source: [DENSENET] Sec. 3, Table 1; DenseNet-BC is bottleneck=True, compression=0.5.
    """
    if stem is None:
        stem = "large" if min(input_shape[:2]) >= LARGE_IMAGE_PIXELS else "small"
    if bottleneck is None:
        bottleneck = stem == "large"
    if growth_rate < 1 or num_classes < 2 or not 0.0 < compression <= 1.0:
        raise ValueError(
            f"got growth_rate {growth_rate}, num_classes {num_classes}, compression {compression}; "
            "allowed: >= 1, >= 2, and above 0 up to 1"
        )
    check_batch_norm(batch_norm)
    layers_per_block = densenet_plan(depth, stem, num_blocks, bottleneck)

    from keras import Input, Model, layers

    inputs = Input(input_shape, name="image")
    channels = 2 * growth_rate
    if stem == "small":
        x = _convolution(inputs, channels, 3, 1, "stem_conv")
    else:
        x = _convolution(inputs, channels, 7, 2, "stem_conv")
        x = _activation(x, "stem", batch_norm)
        x = layers.MaxPooling2D(3, strides=2, padding="same", name="stem_pool")(x)
    for block, num_layers in enumerate(layers_per_block):
        if block:
            channels = int(channels * compression)
            x = _transition(x, channels, f"transition{block}", batch_norm)
        for index in range(num_layers):
            new = _dense_layer(x, growth_rate, bottleneck, f"block{block}_layer{index}", batch_norm)
            x = layers.Concatenate(name=f"block{block}_layer{index}_concat")([x, new])
        channels += num_layers * growth_rate
    x = layers.GlobalAveragePooling2D(name="pool")(_activation(x, "last", batch_norm))
    return Model(inputs, layers.Dense(num_classes, name="logits")(x), name="densenet")


def densenet_plan(depth: int, stem: str, num_blocks: int, bottleneck: bool) -> tuple[int, ...]:
    """Return the number of layers in each dense block.

    Raises:
        ValueError: if there is no such network.
    """
    if stem not in ("small", "large"):
        raise ValueError(f"stem: got {stem!r}, allowed: 'small', 'large'")
    if stem == "large":
        if depth not in _IMAGENET_LAYERS:
            raise ValueError(
                f"depth of a large-stem DenseNet: got {depth}, allowed: {sorted(_IMAGENET_LAYERS)}"
            )
        return _IMAGENET_LAYERS[depth]
    if num_blocks < 1:
        raise ValueError(f"num_blocks: got {num_blocks}, allowed: >= 1")
    step = num_blocks * (2 if bottleneck else 1)
    num_layers, rest = divmod(depth - num_blocks - 1, step)
    if num_layers < 1 or rest:
        examples = ", ".join(str(num_blocks + 1 + step * k) for k in (1, 2, 3))
        raise ValueError(
            f"depth of a DenseNet of {num_blocks} blocks: got {depth}, "
            f"allowed: {step}n+{num_blocks + 1} ({examples}, ...)"
        )
    return (num_layers,) * num_blocks


def _convolution(x: Any, channels: int, size: int, stride: int, name: str) -> Any:
    from keras import layers

    return layers.Conv2D(
        channels,
        size,
        strides=stride,
        padding="same",
        use_bias=False,
        kernel_initializer="he_normal",
        name=name,
    )(x)


def _activation(x: Any, name: str, batch_norm: str) -> Any:
    from keras import layers

    x = normalised(x, batch_norm, f"{name}_norm")
    return layers.ReLU(name=f"{name}_relu")(x)


def _dense_layer(x: Any, growth_rate: int, bottleneck: bool, name: str, batch_norm: str) -> Any:
    """x: (batch, h, w, c) -> the new channels (batch, h, w, growth_rate)."""
    if bottleneck:
        x = _convolution(_activation(x, f"{name}_0", batch_norm), 4 * growth_rate, 1, 1, f"{name}_0_conv")
    return _convolution(_activation(x, f"{name}_1", batch_norm), growth_rate, 3, 1, f"{name}_1_conv")


def _transition(x: Any, channels: int, name: str, batch_norm: str) -> Any:
    """x: (batch, h, w, c) -> (batch, ceil(h/2), ceil(w/2), channels)."""
    from keras import layers

    x = _convolution(_activation(x, name, batch_norm), channels, 1, 1, f"{name}_conv")
    return layers.AveragePooling2D(2, padding="same", name=f"{name}_pool")(x)
