"""What a traced step hands from one part to the next: gradients, and numbers for the host."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import tensorflow as tf

from hpcbal.training.arrays import Array
from hpcbal.training.backend import Batch, Sums


class Gradients(NamedTuple):
    """What a traced step computes on this rank's samples.

    Attributes:
        gradients: of the rank's part of the mean loss, by trainable variable.
        loss: sum over the samples, with the model's own losses.
        states: sums behind the metrics.
        share: number of samples over that of the whole step.
        before, after: values of the other variables around the forward pass.
    """

    gradients: list[tf.Tensor]
    loss: tf.Tensor
    states: list[tf.Tensor]
    share: tf.Tensor
    before: list[tf.Tensor]
    after: Sequence[tf.Tensor]


def numbers_of(*tensors: tf.Tensor) -> tf.Tensor:
    """All of them in one vector, float64."""
    return tf.concat([tf.reshape(tf.cast(tensor, tf.float64), [-1]) for tensor in tensors], axis=0)


def sums_of(values: Array, batch: Batch) -> Sums:
    """Loss and states of metrics, in this order, as the sums of a batch."""
    return Sums(float(values[0]), len(batch.ids), values[1:])
