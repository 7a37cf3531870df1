"""The ways to deal samples of unequal size, on emulated workers."""

from __future__ import annotations

import pytest
from workloads.unequal import Trial, Workers

from hpcbal.policies.samples.chronica import MEAN_SIZE, generated_sizes


def pass_s(method: str, speeds: list[float], dif: float) -> float:
    """Seconds of a second pass of 20 steps."""
    sizes = generated_sizes(20 * 8 * len(speeds), dif, seed=0)
    trial = Trial(method, sizes, Workers.of(speeds, MEAN_SIZE), samples_per_worker=8)
    return [trial.run_pass(number).seconds for number in range(2)][-1]


def test_counts_alone_balance_speeds_and_not_sizes() -> None:
    unlike, alike = [1.0, 1.0, 0.5, 0.5], [1.0] * 4
    assert pass_s("boa", unlike, 0.0) == pytest.approx(pass_s("within-batch", unlike, 0.0), rel=0.03)
    assert pass_s("boa", unlike, 0.0) < 0.8 * pass_s("random", unlike, 0.0)
    assert pass_s("boa", alike, 64.0) > 1.2 * pass_s("within-batch", alike, 64.0)
