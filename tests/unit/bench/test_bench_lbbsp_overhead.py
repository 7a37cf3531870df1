"""The added time of a policy is relative to `even`."""

from __future__ import annotations

import numpy as np
import pytest
from bench_lbbsp_overhead import figures, interval_of_added
from ranks.lbbsp_overhead import COMPUTED, STEP, SleepingReplica, take_steps

from hpcbal.runtime.balance.balancer import EvenSplit
from hpcbal.training.collective import LocalCollective

STEPS = {
    "even": [[0.010, 2.0]] * 3,
    "fitted": [[0.012, 2.0]] * 2 + [[9.0, 9.0]],  # a median ignores one slow step
    "lb-bsp-cpu ema": [[0.030, 2.0]] * 3,
}


def test_policies_are_compared_with_even_shares() -> None:
    rows = figures(STEPS, 3)
    assert rows["even"]["added_ms"] == rows["even"]["mean_added_share"] == 0.0
    assert rows["fitted"]["added_ms"] == pytest.approx(2.0)
    assert rows["fitted"]["mean_added_share"] == pytest.approx((9.024 / 3 - 0.01) / 2.0)
    assert rows["lb-bsp-cpu ema"]["added_share"] == pytest.approx(0.01)


def test_the_interval_contains_the_added_share() -> None:
    rng = np.random.default_rng(0)
    noise = 0.002 * rng.standard_normal((2, 10, 4))
    low, high = interval_of_added(0.015 + noise[0], 0.010 + noise[1])
    assert 0.003 < low < high < 0.007


def test_turns_that_were_slow_as_a_whole_widen_the_interval() -> None:
    rng = np.random.default_rng(0)
    even, noise = 0.010 + 0.001 * rng.standard_normal((2, 10, 4))
    steady = interval_of_added(0.005 + noise, even)
    shifts = 0.010 * (np.arange(10) % 2)[:, np.newaxis]
    uneven = interval_of_added(noise + shifts, even)
    assert uneven[1] - uneven[0] > 2 * (steady[1] - steady[0])


def test_steps_of_the_bench_are_those_of_a_run() -> None:
    replica = SleepingReplica(1e-5, [np.zeros(3, np.float32)], np.random.default_rng(0))
    rows = take_steps(EvenSplit(1), replica, LocalCollective(), 10, num_steps=3)
    assert rows.shape == (3, 3)
    assert (np.diff(rows[:, COMPUTED]) > 0).all()
    assert (rows[:, STEP] > 0).all()
