"""Parts of a traced step: sums over the group, loss scaling, and errors under our names."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import keras
import tensorflow as tf

from hpcbal.errors import InputError, UserCodeError
from hpcbal.training.backend import Batch, Sums
from hpcbal.training.objective import FIRST_SCALE, GROW_AFTER, LARGEST_SCALE, LEAST_SCALE
from hpcbal.training.step_exchange import StepExchange
from hpcbal.training.weights import Array


class Gradients(NamedTuple):
    """The results of a traced step for this rank's samples.

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


class TracedExchange:
    """The sums of one trace; each of them waits for the one before.

    TensorFlow runs independent operations in any order, which may differ between ranks: for example the two
    branches of a residual block. The group over which the sums are taken is not part of the trace, so groups
    may change without a new trace.

    Attributes:
        gradients: the sums on the way back, float64, shapes (n,); not finite if this rank's have overflown.

    Args:
        exchange: carries out the sums when the traced function runs.
    """

    def __init__(self, exchange: StepExchange) -> None:
        self._exchange = exchange
        self._graph = tf.compat.v1.get_default_graph()
        self._last: list[tf.Tensor] = []
        self.gradients: list[tf.Tensor] = []
        self._num_sums = 0

    def sum(self, numbers: tf.Tensor) -> tf.Tensor:
        """Sum `numbers`, float64, shape (n,), n known while tracing, over the ranks.

        A change of this rank's number changes the sum on all ranks: its gradient is the sum of all ranks'.

        Raises:
            InputError: within a loop or a branch, which could run a different number of times on each rank.
        """
        if tf.compat.v1.get_default_graph() is not self._graph:
            raise InputError(
                "a synchronised layer is inside a loop, a branch or a traced function of the model; use it "
                "outside of them, or use a layer that is not synchronised (keras.layers.BatchNormalization)"
            )
        self._num_sums += 1
        forward = partial(self._meet, place=2 * self._num_sums - 1)
        backward = partial(self._meet_back, place=2 * self._num_sums)
        total: tf.Tensor = tf.custom_gradient(lambda x: (forward(x), backward))(numbers)
        return total

    def _meet_back(self, numbers: tf.Tensor, place: int) -> tf.Tensor:
        self.gradients.append(self._meet(numbers, place, is_gradient=True))
        return self.gradients[-1]

    def _meet(self, numbers: tf.Tensor, place: int, *, is_gradient: bool = False) -> tf.Tensor:
        meet = partial(self._exchange.sum, place=place, is_gradient=is_gradient)
        with tf.control_dependencies(self._last):
            summed: Any = tf.numpy_function(meet, [numbers], tf.float64)
        self._last = [summed]
        summed.set_shape(numbers.shape)
        return summed


MOST_GATHERED = 2**16
"""Gradients of at most this many numbers are gathered before they are summed. Copying them costs less than a
kernel each; copying large ones would cost more."""

_NOT_FINITE = "hpcbal: the loss or a gradient is not finite"


def all_finite(loss: tf.Tensor, gradients: Sequence[tf.Tensor]) -> tf.Tensor:
    """Whether the loss and all gradients are finite, as a traced boolean.

    A sum is not finite if one of its terms is not.
    """
    small, sums = [loss], []
    for gradient in gradients:
        size = gradient.shape.num_elements()  # None: some operations leave the shape open while tracing
        if size is not None and size <= MOST_GATHERED:
            small.append(gradient)
        else:
            sums.append(tf.reshape(tf.reduce_sum(gradient), [1]))
    numbers = [tf.reshape(gradient, [-1]) for gradient in small]
    return tf.math.is_finite(tf.reduce_sum(tf.concat(numbers + sums, axis=0)))


def stop_unless(finite: tf.Tensor) -> tf.Operation:
    """An operation that ends the traced function with an error; what must not run then depends on it."""
    return tf.raw_ops.Assert(condition=finite, data=[tf.constant(_NOT_FINITE)])


def is_not_finite(error: tf.errors.InvalidArgumentError) -> bool:
    """Whether `stop_unless` has raised this error, rather than the user's model."""
    return _NOT_FINITE in str(error)


@contextlib.contextmanager
def memory_errors() -> Iterator[None]:
    """Turn TensorFlow's out-of-memory errors into `MemoryError`."""
    try:
        yield
    except tf.errors.ResourceExhaustedError as error:
        raise MemoryError(str(error)) from error
    except UserCodeError as error:  # the memory ended while a user's code was running
        if isinstance(error.__cause__, tf.errors.ResourceExhaustedError):
            raise MemoryError(str(error)) from error
        raise


@contextlib.contextmanager
def file_errors() -> Iterator[None]:
    """Raise OSError where TensorFlow cannot write a file, for example on a full disk."""
    try:
        yield
    except (
        tf.errors.ResourceExhaustedError,
        tf.errors.PermissionDeniedError,
        tf.errors.FailedPreconditionError,
        tf.errors.UnavailableError,
    ) as error:  # such as "{{function_node ...}} part-00000...; No space left on device [Op:...]"
        raise OSError(error.message.rpartition("; ")[2].partition(" [Op:")[0]) from error


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
        """Return a rank's summands: zeros if its gradients overflow, and a flag as the last; traced."""
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
            larger = tf.minimum(self._scale.value * 2.0, LARGEST_SCALE)
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
