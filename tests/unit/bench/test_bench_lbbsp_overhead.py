"""What balancing adds is counted from `even`."""

from __future__ import annotations

import pytest
from bench_lbbsp_overhead import figures

STEPS = {
    "even": [[0.010, 2.0]] * 3,
    "fitted": [[0.012, 2.0]] * 2 + [[9.0, 9.0]],  # in a median one slow step does not count
    "lb-bsp-cpu ema": [[0.030, 2.0]] * 3,
}


def test_policies_are_compared_with_even_shares() -> None:
    rows = figures(STEPS)
    assert rows["even"]["added_ms"] == rows["even"]["mean_added_share"] == 0.0
    assert rows["fitted"]["added_ms"] == pytest.approx(2.0)
    assert rows["fitted"]["mean_added_share"] == pytest.approx((9.024 / 3 - 0.01) / 2.0)
    assert rows["lb-bsp-cpu ema"]["added_share"] == pytest.approx(0.01)
