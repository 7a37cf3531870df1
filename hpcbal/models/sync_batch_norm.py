"""Batch normalisation by mean and variance of the whole step, however it is split over the ranks."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from typing import Any

import keras
import tensorflow as tf

from hpcbal.errors import InputError

AllSum = Callable[[tf.Tensor], tf.Tensor]

_all_sum: ContextVar[AllSum | None] = ContextVar("all_sum", default=None)


@contextlib.contextmanager
def summing_with(all_sum: AllSum) -> Iterator[None]:
    """Make the layers of models that are called in this context sum over ranks; for backends.

    Args:
        all_sum: maps a float64 tensor of shape (n,) to its sum over the ranks, with a matching gradient.
    """
    token = _all_sum.set(all_sum)
    try:
        yield
    finally:
        _all_sum.reset(token)


@keras.saving.register_keras_serializable(package="hpcbal")
class SyncBatchNormalization(keras.layers.BatchNormalization):
    """`keras.layers.BatchNormalization` over the samples of all ranks of a trainer group.

    In a training step every rank normalises by the mean and variance of the step's whole batch, in which each
    sample counts once. The gradient flows through the other ranks' samples too. So a step, and the moving
    statistics, are the same as in one process with the same samples, whatever the shares. In inference, in a
    group of one, and outside hpcbal it is the plain layer. Arguments, variables and names are also those of
    the plain layer, so the checkpoints of the two are interchangeable.

    Each such layer costs the group two small all-reduces per step, in which the ranks wait for the slowest.

    Raises:
        InputError: if the layer does not support this version of Keras.

    Example:
        x = SyncBatchNormalization(momentum=0.9)(keras.layers.Conv2D(16, 3)(x))
    """

    def __init__(self, *args: Any, name: str | None = None, **kwargs: Any) -> None:
        if not hasattr(keras.layers.BatchNormalization, "_moments"):  # this class overrides a private method
            raise InputError(
                f"Keras {keras.__version__} computes batch statistics in a way that SyncBatchNormalization "
                "does not support; install Keras 3.15, or use batch_norm: local "
                "(keras.layers.BatchNormalization)"
            )
        # A layer without a name gets the next name that Keras would give the plain layer.
        super().__init__(*args, name=name or keras.layers.BatchNormalization().name, **kwargs)

    def _moments(self, inputs: tf.Tensor, mask: tf.Tensor | None) -> tuple[tf.Tensor, tf.Tensor]:
        """Mean and variance of each channel, as the plain layer requests them.

        Squares of large numbers lose the precision of small differences. So each rank sums squares around its
        own mean, then shifts them to zero in float64, where ranks can add them.

        Args:
            inputs: floating point, at least float32; channels on `axis`.
            mask: None, or which positions count, of the inputs' shape without channels, which must then be
                the last axis.

        Returns:
            Both of shape (channels,), in the type of the inputs.
        """
        all_sum = _all_sum.get()
        if all_sum is None:
            plain: tuple[tf.Tensor, tf.Tensor] = super()._moments(inputs, mask)
            return plain
        channels, axes = inputs.shape[self.axis], self._reduction_axes
        if mask is None:
            counted, softener = tf.cast(tf.size(inputs), tf.float64) / channels, 0.0
            first = tf.reduce_sum(inputs, axes, keepdims=True)
        else:
            counts = tf.broadcast_to(tf.cast(mask, tf.bool)[..., tf.newaxis], tf.shape(inputs))
            counted = tf.reduce_sum(tf.cast(counts, tf.float64)) / channels
            softener = keras.backend.epsilon()  # as in the plain layer, in case no position counts
            first = tf.reduce_sum(tf.where(counts, inputs, 0.0), axes, keepdims=True)
        center = tf.stop_gradient(first / tf.cast(tf.maximum(counted, 1.0), inputs.dtype))
        around = inputs - center if mask is None else tf.where(counts, inputs - center, 0.0)
        second = tf.reduce_sum(tf.square(around), axes)
        first, center, second = (
            tf.cast(tf.reshape(x, [channels]), tf.float64) for x in (first, center, second)
        )
        second += center * (2.0 * first - counted * center)  # around zero
        summed = all_sum(tf.concat([[counted], first, second], axis=0))
        counted, first, second = summed[0], summed[1 : 1 + channels], summed[1 + channels :]
        mean = first / (counted + softener)
        variance = (second - mean * (2.0 * first - counted * mean)) / (counted + softener)
        return tf.cast(mean, inputs.dtype), tf.cast(tf.nn.relu(variance), inputs.dtype)


def synchronised_layers(model: keras.Model) -> list[SyncBatchNormalization]:
    """All such layers in a built model, also in models within it; a frozen one has nothing to sum."""
    found = (layer for layer in model._flatten_layers() if isinstance(layer, SyncBatchNormalization))
    return [layer for layer in found if layer.trainable]


def exchange_length(layers: list[SyncBatchNormalization]) -> int:
    """Most numbers that one of these layers sums over the ranks at once."""
    return max(1 + 2 * int(layer.moving_mean.shape[0]) for layer in layers)
