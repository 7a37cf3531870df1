"""The bench counts the steps of a run with the splitting machine of a run."""

from __future__ import annotations

import bench_lbbsp_gpu as bench
import numpy as np

FOUR = bench.four_kinds(4, 30, 60, 0.0)


def test_in_a_run_decisions_act_in_the_next_step_until_they_move_little() -> None:
    ratios = bench.run("fitted", FOUR, 0)
    assert ratios[0] == ratios[1], "the policy does not see the first step"
    assert ratios[2] < ratios[1]
    assert bench.settled(ratios[:30]) <= 6


def test_in_a_run_decisions_after_settling_act_three_steps_later() -> None:
    ratios = bench.run("fitted", FOUR, 0)
    assert len(set(ratios[30:33].tolist())) == 1
    assert bench.settled(ratios[30:]) <= 6


def test_settling_counts_the_iterations_before_all_stay_near_the_optimum() -> None:
    ratios = np.array([2.0, 1.0, 1.2, 1.05, 1.0])
    assert bench.settled(ratios) == 3.0
    assert bench.settled(ratios[:3]) == float("inf")
