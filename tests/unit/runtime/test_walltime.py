"""A clean stop is asked for once, in time before the allocation ends."""

from __future__ import annotations

import time

from hpcbal.runtime.walltime import WALLTIME_MARGIN_S, WalltimeLimit


def test_without_an_end_nothing_is_asked():
    assert WalltimeLimit(None).reached() is None


def test_it_asks_once_a_margin_before_the_end():
    now = time.time()
    assert WalltimeLimit(now + 100.0, margin_s=50.0).reached() is None
    limit = WalltimeLimit(now + 49.0, margin_s=50.0)
    assert limit.reached() == "the walltime is nearly over"
    assert limit.reached() is None


class Config:
    def __init__(self, walltime: float | None) -> None:
        self.walltime = walltime


def test_the_config_wins_over_slurm():
    slurm = {"SLURM_JOB_END_TIME": str(int(time.time()) + 10)}
    assert WalltimeLimit.from_config(Config(None), slurm).reached() is not None  # type: ignore[arg-type]
    assert WalltimeLimit.from_config(Config(3600.0), slurm).reached() is None  # type: ignore[arg-type]
    assert WalltimeLimit.from_config(Config(None), {}).reached() is None  # type: ignore[arg-type]
    assert WalltimeLimit.from_config(Config(None), {"SLURM_JOB_END_TIME": "x"}).reached() is None  # type: ignore[arg-type]


def test_a_short_walltime_keeps_most_of_itself():
    assert WALLTIME_MARGIN_S == 60.0
    assert WalltimeLimit.from_config(Config(40.0), {}).reached() is None  # type: ignore[arg-type]
