"""What balancing adds is counted from `even`, and messages by the rounds that the workers need."""

from __future__ import annotations

import pytest
from bench_lbbsp_overhead import figures

STEPS = {
    "even": [[0.010, 0.0001, 2.0]] * 3,
    "fitted": [[0.012, 0.0003, 2.0]] * 2 + [[9.0, 0.0003, 9.0]],  # medians: one slow step does not count
    "lb-bsp-cpu ema": [[0.030, 0.0010, 2.0]] * 3,
}
MESSAGES = (40e-6, 60e-6, 50e-6)


def test_policies_are_compared_with_even_shares() -> None:
    rows = figures(STEPS, MESSAGES, num_workers=64)
    assert rows["even"]["added_ms"] == rows["even"]["own_cores_ms"] == 0.0
    assert rows["fitted"]["added_ms"] == pytest.approx(2.0)
    assert rows["lb-bsp-cpu ema"]["added_share"] == pytest.approx(0.01)


def test_with_own_cores_a_worker_pays_its_code_and_the_rounds_of_messages() -> None:
    rows = figures(STEPS, MESSAGES, num_workers=64)
    assert rows["fitted"]["own_cores_ms"] == pytest.approx(0.3 + 6 * 0.02)
    assert rows["lb-bsp-cpu ema"]["own_cores_ms"] == pytest.approx(1.0 + 6 * (0.02 + 0.05))
    assert rows["lb-bsp-cpu ema"]["own_cores_share"] == pytest.approx(1.42e-3 / 2.0)


def test_reports_that_cost_less_than_the_noise_cost_nothing() -> None:
    rows = figures(STEPS, (60e-6, 50e-6, 0.0), num_workers=64)
    assert rows["fitted"]["own_cores_ms"] == pytest.approx(0.3)
