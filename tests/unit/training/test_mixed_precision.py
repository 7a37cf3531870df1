"""Layers that compute in 16 bits: what they learn, and steps that overflow."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import Any

import numpy as np
import pytest

from hpcbal.training.groups import NonFiniteError
from hpcbal.training.keras.tensorflow_backend import TensorFlowBackend
from hpcbal.training.objective import FIRST_SCALE, GROW_AFTER

Make = Callable[..., Any]
LINEAR, NORMALISED = "training_models:linear", "training_models:normalised"
SCALE, STEPS = "optimizer/loss_scale", "optimizer/steps_of_loss_scale"


@pytest.fixture
def build(make_dnn: Make, make_spec: Make) -> Make:
    def make(precision: str, model: str = LINEAR, **given: Any) -> Any:
        spec = make_spec(dtype="float32")
        return TensorFlowBackend(precision=precision).build(make_dnn(model=model, **given), spec, 5, 0)

    return make


def part(batch: Any, *places: int) -> Any:
    index = slice(*places)
    return type(batch)(batch.ids[index], batch.x[index], batch.y[index])


def apply_sums(replica: Any, parts: list[Any]) -> None:
    replica.apply([sum(tensors) for tensors in zip(*(each.tensors for each in parts), strict=True)])


def step_in_shares(replica: Any, batch: Any, stops: tuple[int, ...] = (0, 3, 4, 12)) -> None:
    parts = [replica.compute(part(batch, *at), 12) for at in pairwise(stops)]
    apply_sums(replica, [*parts, replica.zeros()])


@pytest.mark.parametrize(
    ("precision", "model", "in_shares"),
    [
        ("mixed_float16", LINEAR, False),
        ("mixed_float16", NORMALISED, False),
        ("mixed_float16", NORMALISED, True),
        ("mixed_bfloat16", LINEAR, True),
        ("mixed_bfloat16", NORMALISED, False),
    ],
)
def test_steps_are_those_of_float32_to_rounding(
    build: Make, make_batch: Make, precision: str, model: str, in_shares: bool
) -> None:
    batch = make_batch(12, dtype="float32")
    mixed, exact = build(precision, model), build("float32", model)
    start = mixed.state()
    mixed.load_state({name: exact.state().get(name, array) for name, array in start.items()})
    tolerance = 0.02 if precision == "mixed_float16" else 0.1
    for _ in range(5):
        for replica in (mixed, exact):
            if in_shares:
                step_in_shares(replica, batch)
            else:
                replica.train_alone(batch)
    for name, array in exact.state().items():
        if name.startswith("weights/") and array.dtype.kind == "f":
            np.testing.assert_allclose(mixed.state()[name], array, atol=tolerance, err_msg=name)
    assert mixed.evaluate(batch).mean_loss == pytest.approx(exact.evaluate(batch).mean_loss, rel=0.05)


def with_scale(replica: Any, scale: float, steps: int = 0) -> dict[str, np.ndarray]:
    state = replica.state()
    state |= {SCALE: np.array(scale, np.float32), STEPS: np.array(steps, np.int64)}
    replica.load_state(state)
    return {name: array for name, array in state.items() if "loss_scale" not in name}


@pytest.mark.parametrize("in_shares", [False, True])
def test_an_overflow_skips_the_step_and_halves_the_scale(
    build: Make, make_batch: Make, in_shares: bool
) -> None:
    """On one rank only: its samples are large, those of the others are not."""
    replica, batch = build("mixed_float16"), make_batch(12, dtype="float32")
    before = with_scale(replica, 2.0**40)
    batch.x[3] *= 1e3
    if in_shares:
        parts = [replica.compute(part(batch, *at), 12) for at in ((0, 3), (3, 4), (4, 12))]
        assert [float(each.tensors[-1]) for each in parts].count(1.0) >= 1
        assert all(np.isfinite(tensor).all() for each in parts for tensor in each.tensors)
        apply_sums(replica, parts)
    else:
        sums = replica.train_alone(batch)
        assert sums.count == 12
    assert [replica.take_skipped_steps() for _ in range(2)] == [1, 0]
    after = replica.state()
    assert float(after[SCALE]) == 2.0**39
    for name, array in before.items():
        if "seed" not in name:
            np.testing.assert_array_equal(after[name], array, err_msg=name)


def test_the_scale_doubles_after_many_good_steps(build: Make, make_batch: Make) -> None:
    replica, batch = build("mixed_float16"), make_batch(12, dtype="float32")
    assert float(replica.state()[SCALE]) == FIRST_SCALE
    with_scale(replica, 8.0, GROW_AFTER - 2)
    replica.train_alone(batch)
    assert (float(replica.state()[SCALE]), int(replica.state()[STEPS])) == (8.0, GROW_AFTER - 1)
    step_in_shares(replica, batch)
    assert (float(replica.state()[SCALE]), int(replica.state()[STEPS])) == (16.0, 0)


@pytest.mark.parametrize("in_shares", [False, True])
def test_what_overflows_without_a_scale_is_an_error(build: Make, make_batch: Make, in_shares: bool) -> None:
    replica, batch = build("mixed_float16"), make_batch(12, dtype="float32")
    before = with_scale(replica, 1.0)
    if in_shares:  # the loss is finite, gradients are not
        with pytest.raises(NonFiniteError, match="or a gradient is not finite"):
            replica.compute(batch, 12, weight=1e8)
    else:
        batch.x[0, 0] = np.inf
        with pytest.raises(NonFiniteError, match="the loss"):
            replica.train_alone(batch)
    for name, array in before.items():
        np.testing.assert_array_equal(replica.state()[name], array, err_msg=name)


def test_the_scale_is_part_of_the_state(build: Make, make_batch: Make) -> None:
    """A replica that loads the state of another one goes on bit by bit like it."""
    one, other = (
        build("mixed_float16", optimizer="adam", learning_rate=0.01, momentum=0.0) for _ in range(2)
    )
    batch = make_batch(12, dtype="float32")
    with_scale(one, 4.0, 17)
    one.train_alone(batch)
    other.load_state(one.state())
    for replica in (one, other):
        replica.train_alone(batch)
    assert list(one.state()) == list(other.state())
    for name, array in one.state().items():
        np.testing.assert_array_equal(other.state()[name], array, err_msg=name)
