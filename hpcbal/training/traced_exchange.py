"""Sums over a trainer group in a traced function, forward and backward, in one order on all ranks."""

from __future__ import annotations

from functools import partial
from typing import Any

import tensorflow as tf

from hpcbal.errors import InputError
from hpcbal.training.step_exchange import StepExchange


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


def check_threads(dnn_name: str) -> None:
    """Check that MPI allows TensorFlow to call it from other threads, one at a time.

    Raises:
        InputError: if this MPI was built or started without thread support.
    """
    from mpi4py import MPI

    if MPI.Query_thread() < MPI.THREAD_SERIALIZED:
        raise InputError(
            f"DNN {dnn_name}: synchronised layers need an MPI that threads may call (MPI_THREAD_SERIALIZED), "
            "but this one allows only the main thread; use batch_norm: local, or an MPI with thread support"
        )
