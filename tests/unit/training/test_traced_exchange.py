"""Traced sums keep one order, propagate back as sums, and are not allowed in loops."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from mpi4py import MPI

from hpcbal.errors import InputError
from hpcbal.models.sync_batch_norm import SyncBatchNormalization, summing_with
from hpcbal.training.backend import LocalCollective
from hpcbal.training.keras.tensorflow_backend import TensorFlowBackend
from hpcbal.training.keras.traced_step import TracedExchange
from hpcbal.training.step import train_step


class Twice:
    """A group of two equal ranks; records what is summed, and where."""

    def __init__(self) -> None:
        self.seen: list[tuple[int, list[float]]] = []

    def sum(self, numbers: np.ndarray, place: int, is_gradient: bool = False) -> np.ndarray:
        assert is_gradient == (place % 2 == 0)
        self.seen.append((place, numbers.tolist()))
        return 2.0 * numbers


def trace(group: Twice) -> Any:
    """Four independent sums; the first has to wait the longest."""

    @tf.function
    def step(x: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        exchange = TracedExchange(group)
        with tf.GradientTape() as tape:
            tape.watch(x)
            slow = exchange.sum(tf.reduce_sum(tf.linalg.matmul(x, x)[:1], axis=1))
            quick = [exchange.sum(k * x[0, :2]) for k in (1.0, 2.0, 3.0)]
            total = tf.reduce_sum(slow) + tf.add_n([tf.reduce_sum(k) for k in quick])
        return total, tape.gradient(total, x)

    return step


def test_sums_have_one_order_and_sums_as_gradients() -> None:
    x = np.ones((300, 300))
    forward = [(1, [90000.0]), (3, [1.0, 1.0]), (5, [2.0, 2.0]), (7, [3.0, 3.0])]
    orders = set()
    for _ in range(2):  # every rank traces for itself
        group = Twice()
        step = trace(group)
        for _ in range(5):
            group.seen.clear()
            total, gradient = step(tf.constant(x))
            assert group.seen[:4] == forward
            assert sorted(group.seen[4:]) == [(2, [1.0]), (4, [1.0, 1.0]), (6, [1.0, 1.0]), (8, [1.0, 1.0])]
            orders.add(tuple(place for place, _ in group.seen))
    assert len(orders) == 1
    assert total == 2 * sum(sum(numbers) for _, numbers in forward)
    # Row 0 of x adds to the first row of x @ x by 300 columns, and as a row of the second factor by 1.
    assert gradient[0, 0] == 2 * (300 + 1 + 1 + 2 + 3)
    assert gradient[1, 5] == 2


def test_a_layer_within_a_loop_is_refused() -> None:
    layer = SyncBatchNormalization()
    layer.build((None, 3))

    @tf.function
    def step(x: tf.Tensor) -> tf.Tensor:
        with summing_with(TracedExchange(Twice()).sum):
            return tf.map_fn(lambda row: layer(row, training=True), x)

    with pytest.raises(InputError, match=r"inside a loop.*keras\.layers\.BatchNormalization"):
        step(tf.ones((2, 4, 3)))


@pytest.mark.parametrize(("level", "is_refused"), [("THREAD_FUNNELED", True), ("THREAD_SERIALIZED", False)])
def test_mpi_must_support_threads(
    make_dnn: Callable[..., Any],
    make_spec: Any,
    monkeypatch: pytest.MonkeyPatch,
    level: str,
    is_refused: bool,
) -> None:
    monkeypatch.setattr(MPI, "Query_thread", lambda: getattr(MPI, level))
    backend = TensorFlowBackend(precision="float64")
    backend.build(make_dnn(model="training_models:plain_twin"), make_spec(), 5, 0)
    synchronised = make_dnn(model="training_models:synchronised")
    if is_refused:
        with pytest.raises(
            InputError, match="DNN dnn: synchronised layers need an MPI that threads may call"
        ):
            backend.build(synchronised, make_spec(), 5, 0)
    else:
        backend.build(synchronised, make_spec(), 5, 0)


def test_alone_a_synchronised_network_trains_like_the_plain_one(
    make_dnn: Callable[..., Any], make_spec: Any, make_batch: Callable[..., Any]
) -> None:
    backend = TensorFlowBackend(precision="float64")
    replicas = [
        backend.build(make_dnn(model=f"training_models:{model}"), make_spec(), 5, 0)
        for model in ("synchronised", "plain_twin")
    ]
    for step in range(3):
        for replica in replicas:
            train_step(replica, make_batch(6, step), 6, LocalCollective())
    ours, theirs = (replica.state() for replica in replicas)
    assert list(ours) == list(theirs)
    for name, array in ours.items():
        np.testing.assert_array_equal(array, theirs[name], err_msg=name)
    assert replicas[0].num_traces == 1  # the step alone: nothing that sums over a group is traced
