"""The runtime prophet of the bench learns from steps."""

from __future__ import annotations

import numpy as np
import pytest
from support.prophet import Prophet

from hpcbal.policies.batching.time_curves import FloatArray


def taught(num_steps: int, spike_every: int = 10**6, seed: int = 0) -> tuple[Prophet, FloatArray]:
    """A prophet after steps of two workers with 2 % noise, and the workers' slopes."""
    random, slopes = np.random.default_rng(seed), np.array([0.01, 0.04])
    prophet = Prophet.of(2)
    for step in range(num_steps):
        work = random.uniform(50, 400, 2)
        seconds = (0.2 + slopes * work) * random.normal(1.0, 0.02, 2)
        prophet = prophet.after(work, seconds * (5.0 if step % spike_every == spike_every - 1 else 1.0))
    return prophet, slopes


def test_a_prophet_that_knows_nothing_takes_workers_for_equal() -> None:
    curves = Prophet.of(3).curves
    assert curves.seconds([10.0, 10.0, 20.0]).tolist() == [10.0, 10.0, 20.0]
    one_known = Prophet.of(2).after(np.array([100.0, 0.0]), np.array([4.0, 0.0])).curves
    assert one_known.slope_s[0] == one_known.slope_s[1]


def test_the_second_step_is_predicted_and_later_ones_well() -> None:
    second, slopes = taught(1)
    assert second.curves.seconds([200.0, 200.0]) == pytest.approx(0.2 + slopes * 200.0, rel=0.5)
    later, _ = taught(40)
    for work in (50.0, 200.0, 400.0):
        assert later.curves.seconds([work, work]) == pytest.approx(0.2 + slopes * work, rel=0.05)
    assert later.indicators.seconds_per_size == pytest.approx(slopes, rel=0.05)


def test_spikes_change_little() -> None:
    spiked, slopes = taught(40, spike_every=10)
    assert spiked.curves.seconds([200.0, 200.0]) == pytest.approx(0.2 + slopes * 200.0, rel=0.1)
