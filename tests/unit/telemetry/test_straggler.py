"""The rank that all others wait for is named with the reason, and noise is not."""

from __future__ import annotations

import pytest

from hpcbal.telemetry.straggler import Straggler, balancing_would_save, find_straggler

GPUS = (4, 5, 6)


@pytest.mark.parametrize(
    ("wait_s", "compute_s", "collective_s", "expected"),
    [
        ([0.0, 0.0, 0.0], [1.0, 3.0, 1.0], [2.1, 0.1, 2.1], Straggler(5, "compute", 2.0)),
        ([0.0, 0.0, 2.0], [1.0, 1.0, 1.0], [2.1, 2.1, 0.1], Straggler(6, "input", 2.0)),
        ([3.0, 3.0, 3.0], [1.0, 1.0, 2.0], [1.1, 1.1, 0.1], Straggler(6, "compute", 1.0)),
        ([0.0, 0.0, 0.0], [1.0, 1.01, 1.0], [4.0, 4.0, 4.0], Straggler(None, "collective", 4.0)),
        ([0.0, 0.0, 0.0], [1.0, 1.05, 1.0], [0.1, 0.1, 0.1], None),
        ([0.0, 0.0, 0.0], [0.0, 0.0, 0.0], [0.0, 0.0, 0.0], None),
    ],
)
def test_straggler_and_reason(
    wait_s: list[float], compute_s: list[float], collective_s: list[float], expected: Straggler | None
) -> None:
    ranks = {"wait_s": wait_s, "compute_s": compute_s, "collective_s": collective_s}
    assert find_straggler(ranks, GPUS) == expected


@pytest.mark.parametrize(
    ("compute_s", "samples", "expected"),
    [
        ([1.0, 1.0], [100, 100], 0.0),
        ([1.0, 2.0], [100, 100], (2.0 - 200 / 150) / 2.0),  # even shares on unlike GPUs
        ([2.0, 2.0], [200, 100], 0.0),  # balanced ones on the same
        ([2.0, 2.0], [0, 0], 0.0),
        ([0.0, 0.0], [0, 0], 0.0),
    ],
)
def test_what_balancing_would_save(compute_s: list[float], samples: list[int], expected: float) -> None:
    collective_s = [max(compute_s) - seconds for seconds in compute_s]
    ranks = {"wait_s": [0.0] * 2, "compute_s": compute_s, "collective_s": collective_s, "samples": samples}
    assert balancing_would_save(ranks) == pytest.approx(expected)
