"""Train in float16: scale the loss so that small gradients are not lost, and skip steps that overflow."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import keras
import tensorflow as tf

FIRST_SCALE = 2.0**15
GROW_AFTER = 2000
"""Steps without overflow before the scale doubles; both as in `keras.optimizers.LossScaleOptimizer`."""

LEAST_SCALE = 1.0
"""With this scale an overflow is one of the network, not of the scale."""


class LossScale:
    """The factor on the loss of all ranks of a group; it follows from what they have summed, so it is equal.

    An overflow on any rank skips the update on all ranks and halves the scale. A flag travels with the
    gradients for that.

    Attributes:
        variables: scale and steps since it changed, for the checkpoint, by name.

    Source: P. Micikevicius et al., "Mixed precision training", ICLR 2018, Sec. 3.2; the scale changes as in
        Keras.
    """

    def __init__(self) -> None:
        self._scale = keras.Variable(FIRST_SCALE, dtype="float32", trainable=False, name="loss_scale")
        self._steps = keras.Variable(0, dtype="int64", trainable=False, name="steps_of_loss_scale")
        self._skipped = keras.Variable(0, dtype="int64", trainable=False, name="skipped_steps")
        self.variables: Mapping[str, keras.Variable] = {
            "optimizer/loss_scale": self._scale,
            "optimizer/steps_of_loss_scale": self._steps,
        }

    @property
    def scale(self) -> tf.Tensor:
        """The factor on the loss; traced."""
        return tf.convert_to_tensor(self._scale.value)

    def is_usable(self, loss: tf.Tensor, finite: tf.Tensor) -> tf.Tensor:
        """Whether the step may go on: the loss is finite, and an overflow is one of the scale; traced.

        Args:
            finite: whether loss and gradients are finite.
        """
        return tf.math.is_finite(loss) & (finite | (self.scale > LEAST_SCALE))

    def contribution(self, tensors: Sequence[tf.Tensor], finite: tf.Tensor) -> list[tf.Tensor]:
        """What a rank adds to the sum: zeros if its gradients overflow, and a flag as the last; traced."""
        kept = [tf.where(finite, tensor, tf.zeros_like(tensor)) for tensor in tensors]
        return [*kept, 1.0 - tf.cast(finite, tf.float32)]

    def unscaled(self, gradients: Sequence[tf.Tensor]) -> list[tf.Tensor]:
        """The gradients of the loss itself; traced."""
        return [gradient / tf.cast(self.scale, gradient.dtype) for gradient in gradients]

    def update(self, finite: tf.Tensor, apply: Callable[[], object]) -> None:
        """Apply the update unless a rank has overflown, and move the scale; traced.

        Args:
            finite: whether all ranks' gradients are finite.
            apply: changes weights; it uses gradients unscaled before this call.
        """

        def grow() -> tf.Tensor:
            apply()
            is_due = self._steps.value + 1 >= GROW_AFTER
            # Beyond float32 there is nothing to gain, and an infinite scale would never come back.
            larger = tf.minimum(self._scale.value * 2.0, 2.0**100)
            self._scale.value.assign(tf.where(is_due, larger, self._scale.value))
            self._steps.value.assign(tf.where(is_due, tf.zeros([], tf.int64), self._steps.value + 1))
            return tf.zeros([])

        def shrink() -> tf.Tensor:
            self._scale.value.assign(tf.maximum(self._scale.value * 0.5, LEAST_SCALE))
            self._steps.value.assign(tf.zeros([], tf.int64))
            self._skipped.value.assign_add(tf.ones([], tf.int64))
            return tf.zeros([])

        tf.cond(finite, grow, shrink)

    def take_skipped(self) -> int:
        """Number of updates that were skipped since the last call."""
        skipped = int(self._skipped.value)
        self._skipped.assign(0)
        return skipped
