"""The bench counts steps of a run as they come: what is seen in one step acts three steps later."""

from __future__ import annotations

from dataclasses import replace

import bench_lbbsp_gpu as bench
import numpy as np

FOUR = bench.four_kinds(4, 60, 61, 0.0)


def test_in_a_run_the_first_decision_acts_three_steps_after_the_two_that_tell_nothing() -> None:
    by_decision, _ = bench.run("fitted", FOUR, 0)
    in_steps, _ = bench.run("fitted", replace(FOUR, in_steps=True), 0)
    assert (in_steps[:5] == by_decision[0]).all()
    # One decision is in the making or on its way in all three steps until the next one is shown.
    np.testing.assert_array_equal(in_steps[5:11:3], by_decision[1:3])
    np.testing.assert_array_equal(in_steps[6:8], in_steps[5])


def test_settling_counts_what_passes_before_all_is_well() -> None:
    ratios = np.array([2.0, 1.0, 1.2, 1.05, 1.0])
    assert (bench.first(ratios), bench.settled(ratios)) == (1.0, 3.0)
    assert bench.settled(ratios[:3]) == float("inf")
