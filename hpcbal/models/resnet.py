"""Residual networks: the small-image family of depth 6n+2, and the ImageNet family."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Literal

from hpcbal.models.batch_norm import check_batch_norm, normalised

if TYPE_CHECKING:
    import keras

LARGE_IMAGE_PIXELS = 64
"""Images of at least this height and width get the ImageNet stem (stride 4 before the first block)."""

_IMAGENET_BLOCKS = {
    18: ("basic", (2, 2, 2, 2)),
    34: ("basic", (3, 4, 6, 3)),
    50: ("bottleneck", (3, 4, 6, 3)),
    101: ("bottleneck", (3, 4, 23, 3)),
    152: ("bottleneck", (3, 8, 36, 3)),
}


def resnet(
    input_shape: tuple[int, int, int],
    num_classes: int,
    depth: int,
    width: int | None = None,
    stem: Literal["small", "large"] | None = None,
    batch_norm: Literal["local", "sync"] = "local",
) -> keras.Model:
    """Build a ResNet that returns logits.

    Args:
        input_shape: (height, width, channels) of an image.
        num_classes: >= 2.
        depth: layers with weights. Small stem: 6n+2 (8, 14, 20, 32, 56, 110), three stages of basic blocks.
            Large stem: 18, 34 (basic blocks), 50, 101, 152 (bottleneck blocks).
        width: channels of the first stage, >= 1, doubled from stage to stage; default: 16 (small) or 64
            (large).
        stem: "small" (3x3, stride 1) or "large" (7x7 and pooling, stride 4); default: by the image's size
            (`LARGE_IMAGE_PIXELS`).
        batch_norm: "local": every rank normalises by its own samples; "sync": by the samples of all ranks of
            its trainer group.

    Raises:
        ValueError: if an argument is out of range; the message says what is allowed.
    Source: [RESNET] Sec. 4.1 and 4.2; stride in the 3x3 convolution of a bottleneck (v1.5).
    """
    if stem is None:
        stem = "large" if min(input_shape[:2]) >= LARGE_IMAGE_PIXELS else "small"
    check_batch_norm(batch_norm)
    block_kind, blocks_per_stage = resnet_plan(depth, stem)
    channels = width if width is not None else {"small": 16, "large": 64}[stem]
    if channels < 1 or num_classes < 2:
        raise ValueError(f"got width {channels} and num_classes {num_classes}, allowed: >= 1 and >= 2")

    from keras import Input, Model, layers

    block = {"basic": _basic_block, "bottleneck": _bottleneck_block}[block_kind]
    inputs = Input(input_shape, name="image")
    if stem == "small":
        x = _convolution(inputs, channels, 3, 1, "stem", batch_norm)
    else:
        x = _convolution(inputs, channels, 7, 2, "stem", batch_norm)
        x = layers.MaxPooling2D(3, strides=2, padding="same", name="stem_pool")(x)
    for stage, num_blocks in enumerate(blocks_per_stage):
        for index in range(num_blocks):
            stride = 2 if stage and not index else 1
            x = block(x, channels * 2**stage, stride, f"stage{stage}_block{index}", batch_norm)
    x = layers.GlobalAveragePooling2D(name="pool")(x)
    return Model(inputs, layers.Dense(num_classes, name="logits")(x), name="resnet")


def resnet_plan(depth: int, stem: str) -> tuple[str, tuple[int, ...]]:
    """Return the kind of its blocks, and their number in each stage.

    Raises:
        ValueError: if there is no such network.
    """
    if stem not in ("small", "large"):
        raise ValueError(f"stem: got {stem!r}, allowed: 'small', 'large'")
    if stem == "large":
        if depth not in _IMAGENET_BLOCKS:
            raise ValueError(
                f"depth of a large-stem ResNet: got {depth}, allowed: {sorted(_IMAGENET_BLOCKS)}"
            )
        return _IMAGENET_BLOCKS[depth]
    if depth < 8 or (depth - 2) % 6:
        raise ValueError(f"depth of a small-stem ResNet: got {depth}, allowed: 6n+2 (8, 14, 20, 26, 32, ...)")
    return "basic", ((depth - 2) // 6,) * 3


def _convolution(
    x: Any, channels: int, size: int, stride: int, name: str, batch_norm: str, relu: bool = True
) -> Any:
    """Convolution, batch norm, and usually ReLU. x: (n, h, w, c) -> (n, h/stride, w/stride, channels)."""
    from keras import layers

    x = layers.Conv2D(
        channels,
        size,
        strides=stride,
        padding="same",
        use_bias=False,
        kernel_initializer="he_normal",
        name=f"{name}_conv",
    )(x)
    x = normalised(x, batch_norm, f"{name}_norm")
    return layers.ReLU(name=f"{name}_relu")(x) if relu else x


def _residual(
    x: Any, branch: Callable[[Any], Any], channels: int, stride: int, name: str, batch_norm: str
) -> Any:
    from keras import layers

    shortcut = x
    if stride != 1 or x.shape[-1] != channels:
        shortcut = _convolution(x, channels, 1, stride, f"{name}_shortcut", batch_norm, relu=False)
    return layers.ReLU(name=f"{name}_out")(layers.Add(name=f"{name}_add")([branch(x), shortcut]))


def _basic_block(x: Any, channels: int, stride: int, name: str, batch_norm: str) -> Any:
    def branch(x: Any) -> Any:
        x = _convolution(x, channels, 3, stride, f"{name}_1", batch_norm)
        return _convolution(x, channels, 3, 1, f"{name}_2", batch_norm, relu=False)

    return _residual(x, branch, channels, stride, name, batch_norm)


def _bottleneck_block(x: Any, channels: int, stride: int, name: str, batch_norm: str) -> Any:
    def branch(x: Any) -> Any:
        x = _convolution(x, channels, 1, 1, f"{name}_1", batch_norm)
        x = _convolution(x, channels, 3, stride, f"{name}_2", batch_norm)
        return _convolution(x, 4 * channels, 1, 1, f"{name}_3", batch_norm, relu=False)

    return _residual(x, branch, 4 * channels, stride, name, batch_norm)
