"""Learning rates, with Keras' own schedules as oracle."""

from __future__ import annotations

import math
from types import SimpleNamespace

import keras
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hpcbal.policies.learning_rate import RateSchedule, num_falls, rate_of_step

STEPS = 10


def rates(schedule: RateSchedule, num: int = 80) -> list[float]:
    return [rate_of_step(schedule, step, STEPS) for step in range(num)]


def test_a_constant_rate_stays() -> None:
    schedule = RateSchedule(0.3)
    assert schedule.is_constant
    assert set(rates(schedule)) == {0.3}


def test_the_cosine_is_that_of_keras() -> None:
    oracle = keras.optimizers.schedules.CosineDecay(0.3, 60, alpha=0.1)
    ours = rates(RateSchedule(0.3, "cosine", length=6.0, final=0.1))
    np.testing.assert_allclose(ours, [float(oracle(step)) for step in range(80)], rtol=1e-5)


def test_the_exponential_is_that_of_keras() -> None:
    oracle = keras.optimizers.schedules.ExponentialDecay(0.3, 20, 0.5)
    ours = rates(RateSchedule(0.3, "exponential", factor=0.5, every=2.0))
    np.testing.assert_allclose(ours, [float(oracle(step)) for step in range(80)], rtol=1e-5)


def test_steps_are_those_of_keras() -> None:
    """Keras counts a boundary to the part before it."""
    oracle = keras.optimizers.schedules.PiecewiseConstantDecay([29, 49], [0.3, 0.03, 0.003])
    ours = rates(RateSchedule(0.3, "step", at=(3.0, 5.0)))
    np.testing.assert_allclose(ours, [float(oracle(step)) for step in range(80)], rtol=1e-5)


def test_a_warm_up_begins_above_zero_and_the_decay_after_it() -> None:
    ours = rates(RateSchedule(0.4, "cosine", warmup=2.0, length=6.0))
    np.testing.assert_allclose(ours[:20], [0.4 * (step + 1) / 20 for step in range(20)])
    oracle = keras.optimizers.schedules.CosineDecay(0.4, 40)
    np.testing.assert_allclose(ours[20:], [float(oracle(step)) for step in range(60)], rtol=1e-5, atol=1e-9)


@pytest.mark.parametrize("warmup", [0.01, 0.1])
def test_a_warm_up_of_a_step_or_less_is_none(warmup: float) -> None:
    assert set(rates(RateSchedule(0.4, warmup=warmup))) == {0.4}


@given(
    st.lists(st.integers(-20, 20).map(lambda n: n / 4), max_size=60),
    st.integers(1, 5),
    st.integers(0, 4),
    st.sampled_from([0.0, 0.5]),
    st.booleans(),
)
def test_the_plateau_is_that_of_keras(
    values: list[float], patience: int, cooldown: int, min_delta: float, more_is_better: bool
) -> None:
    optimizer = SimpleNamespace(learning_rate=1.0)
    oracle = keras.callbacks.ReduceLROnPlateau(
        "m",
        factor=0.5,
        patience=patience,
        mode="max" if more_is_better else "min",
        min_delta=min_delta,
        cooldown=cooldown,
    )
    oracle.set_model(SimpleNamespace(optimizer=optimizer))
    oracle.on_train_begin()
    for epoch, value in enumerate(values):
        oracle.on_epoch_end(epoch, {"m": value})
    schedule = RateSchedule(
        1.0,
        "plateau",
        factor=0.5,
        patience=patience,
        cooldown=cooldown,
        min_delta=min_delta,
        more_is_better=more_is_better,
    )
    assert 0.5 ** num_falls(schedule, values) == pytest.approx(float(optimizer.learning_rate))


def test_a_value_that_is_no_number_is_no_improvement() -> None:
    schedule = RateSchedule(1.0, "plateau", patience=2)
    assert num_falls(schedule, [math.nan, 1.0, math.nan, 0.5]) == 0
    assert num_falls(schedule, [1.0, math.nan, math.nan]) == 1


def test_a_plateau_never_falls_below_its_least_share() -> None:
    schedule = RateSchedule(0.2, "plateau", factor=0.1, patience=1, final=0.05)
    assert rate_of_step(schedule, 95, STEPS, [1.0] * 9) == pytest.approx(0.01)


def test_a_function_of_ones_own_is_warmed_up_too() -> None:
    schedule = RateSchedule(0.2, "own", warmup=1.0)
    own = lambda step, steps_per_epoch: 1.0 / (1 + step // steps_per_epoch)  # noqa: E731
    assert rate_of_step(schedule, 4, STEPS, own=own) == pytest.approx(0.5)
    assert rate_of_step(schedule, 25, STEPS, own=own) == pytest.approx(1 / 3)
