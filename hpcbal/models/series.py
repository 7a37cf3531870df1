"""Networks over series of unequal length: they get padded batches and a mask, and ignore the padding."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import keras


def recurrent(
    input_shape: tuple[int | None, ...],
    num_classes: int,
    units: int = 32,
    layers: int = 1,
    bidirectional: bool = True,
) -> keras.Model:
    """Make a gated recurrent network (GRU) that classifies a series by its last state.

    Args:
        input_shape: (length or None, channels).
        num_classes: number of logits.
        units: size of the state of each layer and direction, >= 1.
        layers: recurrent layers, >= 1.
        bidirectional: whether each layer also reads the series from its end.

    Raises:
        ValueError: if an argument is out of range.

    Source: K. Cho et al., "Learning phrase representations using RNN encoder-decoder for statistical machine
        translation", arXiv:1406.1078, 2014.
    """
    check_series(input_shape, units=units, layers=layers)
    import keras  # imported here: only a rank that trains needs it

    x = inputs = keras.Input(input_shape)
    for layer in range(layers):
        cell = keras.layers.GRU(units, return_sequences=layer + 1 < layers)
        x = (keras.layers.Bidirectional(cell) if bidirectional else cell)(x)
    return keras.Model(inputs, keras.layers.Dense(num_classes)(x))


def temporal_cnn(
    input_shape: tuple[int | None, ...],
    num_classes: int,
    filters: int = 32,
    kernel_size: int = 7,
    blocks: int = 3,
) -> keras.Model:
    """Make a convolutional network over time that classifies a series by the mean of its features.

    The distance between the inputs of a convolution doubles from block to block.

    Args:
        input_shape: (length or None, channels).
        num_classes: number of logits.
        filters: features of each block, >= 1.
        kernel_size: time steps of a convolution, >= 1.
        blocks: convolutions, >= 1.

    Raises:
        ValueError: if an argument is out of range.

    Source: Z. Wang, W. Yan and T. Oates, "Time series classification from scratch with deep neural networks",
        arXiv:1611.06455, 2016, with layer normalisation, and the dilation of S. Bai, J. Z. Kolter and
        V. Koltun, arXiv:1803.01271, 2018.
    """
    check_series(input_shape, filters=filters, kernel_size=kernel_size, blocks=blocks)
    from hpcbal.models.masked_convolutions import TemporalCnn

    return TemporalCnn(num_classes, filters, kernel_size, blocks)


def check_series(input_shape: tuple[int | None, ...], **sizes: int) -> None:
    """Check the shape of a series, and sizes by the names of their arguments.

    Raises:
        ValueError: if samples are no series, or a size is below 1.
    """
    if len(input_shape) != 2 or input_shape[1] is None:
        raise ValueError(f"got samples of shape {input_shape}, allowed: (length, channels)")
    wrong = {name: size for name, size in sizes.items() if size < 1}
    if wrong:
        raise ValueError(f"got {wrong}, allowed: 1 or more")
