"""A clean stop is requested once, in time before the allocation ends."""

from __future__ import annotations

import time

from hpcbal.cluster.walltime import WALLTIME_MARGIN_S, WalltimeLimit


def test_without_an_end_no_stop_is_requested():
    assert WalltimeLimit(None).reached() is None


def test_a_stop_is_requested_once_a_margin_before_the_end():
    now = time.time()
    assert WalltimeLimit(now + 100.0, margin_s=50.0).reached() is None
    limit = WalltimeLimit(now + 49.0, margin_s=50.0)
    assert limit.reached() == "the walltime is nearly over"
    assert limit.reached() is None


def limit(
    walltime: float | None, slurm_end: str | None = None, started_s: float | None = None
) -> WalltimeLimit:
    environ = {} if slurm_end is None else {"SLURM_JOB_END_TIME": slurm_end}
    began = time.time() if started_s is None else started_s
    return WalltimeLimit.of_job(walltime, began, environ)


def test_the_earlier_of_the_configs_and_slurms_end_counts():
    soon, late = str(int(time.time()) + 10), str(int(time.time()) + 7200)
    assert limit(None, soon).reached() is not None
    assert limit(3600.0, soon).reached() is not None
    assert limit(3600.0, late).reached() is None
    assert limit(None).reached() is None
    assert limit(None, "x").reached() is None
    assert WalltimeLimit.of_job(None, time.time(), {"HPCBAL_END_TIME": soon}).reached() is not None


def test_the_walltime_counts_from_the_start_of_the_program():
    assert limit(3600.0, started_s=time.time() - 3590.0).reached() is not None


def test_a_walltime_shorter_than_four_margins_is_used_to_three_quarters():
    def is_over(after_s: float) -> bool:
        return limit(40.0, started_s=time.time() - after_s).reached() is not None

    assert WALLTIME_MARGIN_S > 40.0  # otherwise the whole margin would fit
    assert [is_over(after_s) for after_s in (0.0, 25.0, 31.0)] == [False, False, True]
