"""Find numbers that are not finite in a traced step, and give TensorFlow's errors our names."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence

import tensorflow as tf

from hpcbal.errors import UserCodeError
from hpcbal.training.backend import SampleShape

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


@contextlib.contextmanager
def hint_at_sizes(sample: SampleShape) -> Iterator[None]:
    """Add to errors of a user's model that its samples differ in size."""
    try:
        yield
    except UserCodeError as error:
        if None not in sample.shape:
            raise
        raise UserCodeError(
            f"{error}. Samples of shape {tuple(sample.shape)} differ in size: use a model that takes such "
            "samples, or add resize, center_crop or random_crop to preprocessing"
        ) from error
