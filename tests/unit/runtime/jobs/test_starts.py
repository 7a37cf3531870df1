"""Starts of jobs that live at the same time never share tags."""

from __future__ import annotations

import pytest

from hpcbal.errors import InputError
from hpcbal.paramserver.engine.wire import NUM_STREAMS
from hpcbal.runtime.jobs.job import next_start


def test_a_start_gets_no_tags_of_a_job_that_has_run_since_long_before() -> None:
    assert next_start(0, ()) == 1
    assert next_start(NUM_STREAMS, {1, 3}) == NUM_STREAMS + 2
    assert next_start(NUM_STREAMS + 2, {1, 3, NUM_STREAMS + 2}) == NUM_STREAMS + 4


def test_more_jobs_at_a_time_than_tags_are_refused() -> None:
    with pytest.raises(InputError, match="2048 jobs run at the same time, allowed: at most 2048; spread"):
        next_start(NUM_STREAMS, range(1, NUM_STREAMS + 1))
