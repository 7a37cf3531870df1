"""The cost of one job over its starts, and its end."""

from __future__ import annotations

import time

import pytest

from hpcbal.config import ParamServerConfig
from hpcbal.paramserver.master.events import End
from hpcbal.runtime.jobs.job import Job


@pytest.fixture
def job() -> Job:
    config = {"app": "m:f", "data": {"dataset": "m:d"}, "mini_batch": 10, "stop": {"max_epochs": 4}}
    return Job(ParamServerConfig.model_validate(config), seed=1)


def test_ranks_count_from_the_time_that_the_job_may_use_them(
    job: Job, monkeypatch: pytest.MonkeyPatch
) -> None:
    def at(seconds: float) -> None:
        monkeypatch.setattr(time, "monotonic", lambda: 1000.0 + seconds)

    at(0.0)
    job.use(0, earlier_s=5.0)
    job.earlier_s = 2.0
    at(10.0)
    job.began_s = time.monotonic()
    job.use(3)
    at(12.0)
    assert (job.used_s, job.wall_s) == (5.0 + 3 * 2.0, 2.0 + 2.0)
    job.use(1)  # two were taken back
    at(15.0)
    job.leave(End("done", "", "4 of at most 4 epochs"))
    at(99.0)
    assert (job.used_s, job.wall_s) == (5.0 + 3 * 2.0 + 3.0, 2.0 + 5.0)


def test_a_job_that_rests_waits_and_is_not_over(job: Job) -> None:
    job.leave(End("suspended", "", "moves to other machines"))
    assert (job.state, job.is_over, job.cause) == ("waiting", False, "")
    job.leave(End("failed", "app", "no more"))
    assert (job.state, job.is_over, job.detail) == ("failed", True, "no more")
