"""Memory of jobs on their machines, and which jobs fit."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hpcbal.policies.grouping.memory import JobMemory, MemoryLimit

SIZES = st.floats(0, 1e12)
BLOCKS = st.integers(1, 500) | st.none()


def test_shares_are_whole_blocks_and_work_is_on_every_machine() -> None:
    job = JobMemory(
        input_bytes=80, model_bytes=30, step_bytes=12, work_bytes=5, data_blocks=8, parameter_blocks=3
    )
    assert job.on(1) == 80 + 30 + 12 + 5
    assert job.on(2) == 80 * 4 / 8 + 30 * 2 / 3 + 6 + 5
    assert job.on(3) == 80 * 3 / 8 + 30 * 1 / 3 + 4 + 5
    assert job.on(100) == pytest.approx(80 / 8 + 30 / 3 + 0.12 + 5)


@given(SIZES, SIZES, SIZES, SIZES, BLOCKS, BLOCKS, st.integers(1, 200))
def test_more_machines_never_need_more_each(inputs, model, step, work, data, parameters, machines) -> None:
    job = JobMemory(inputs, model, step, work, data, parameters)
    assert work <= job.on(machines + 1) <= job.on(machines)
    if data is None and parameters is None:
        assert job.on(machines) == pytest.approx((inputs + model + step) / machines + work)


@given(st.floats(1, 1e9), st.floats(1, 1e10), st.floats(0, 1e9), BLOCKS, st.integers(1, 40))
def test_the_least_machines_hold_a_job_and_one_less_does_not(limit, inputs, work, blocks, most) -> None:
    memory, job = MemoryLimit(limit), JobMemory(inputs, work_bytes=work, data_blocks=blocks)
    least = memory.least_machines(job, most)
    if least is None:
        assert not memory.holds([job], most)
        return
    assert memory.holds([job], least)
    assert least == 1 or not memory.holds([job], least - 1)


def test_without_a_limit_everything_fits() -> None:
    assert MemoryLimit().holds([JobMemory(1e18)] * 3, 1)
    assert MemoryLimit().least_machines(JobMemory(1e18), 5) == 1
