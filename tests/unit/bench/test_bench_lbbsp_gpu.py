"""The bench counts the steps of a run with the splitting machine of a run."""

from __future__ import annotations

from dataclasses import replace

import bench_lbbsp_gpu as bench
import numpy as np

FOUR = bench.four_kinds(4, 60, 61, 0.0)


def test_in_a_run_decisions_act_in_the_next_step_until_they_move_little() -> None:
    by_decision, _ = bench.run("fitted", FOUR, 0)
    in_steps, _ = bench.run("fitted", replace(FOUR, in_steps=True), 0)
    assert in_steps[0] == by_decision[0], "the policy does not see the first step"
    np.testing.assert_array_equal(in_steps[1:5], by_decision[:4])


def test_in_a_run_decisions_after_settling_act_three_steps_later() -> None:
    changed = replace(FOUR, change_at=30, num_iterations=60, in_steps=True)
    ratios, _ = bench.run("fitted", changed, 0)
    assert len(set(ratios[30:33].tolist())) == 1
    assert bench.settled(ratios[30:]) <= 6


def test_settling_counts_the_iterations_before_all_stay_near_the_optimum() -> None:
    ratios = np.array([2.0, 1.0, 1.2, 1.05, 1.0])
    assert (bench.first(ratios), bench.settled(ratios)) == (1.0, 3.0)
    assert bench.settled(ratios[:3]) == float("inf")
