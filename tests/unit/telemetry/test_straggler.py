"""The rank that all others wait for is named with the reason, and noise is not."""

from __future__ import annotations

import pytest

from hpcbal.telemetry.straggler import Straggler, find_straggler

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
