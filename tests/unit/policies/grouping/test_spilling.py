"""Which data blocks lie on disk, against all possible choices, and hill climbing on a simulated machine."""

from __future__ import annotations

import itertools
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hpcbal.policies.grouping.memory import (
    JobMemory,
    MemoryLimit,
    SpillableJob,
    SpillClimber,
    blocks_on_disk,
    returns,
)

JOBS = st.lists(
    st.tuples(st.integers(1, 5), st.sampled_from([0.1, 0.2, 0.5, 1.0, 2.0])), min_size=1, max_size=3
)


def jobs_of(sizes, block_bytes=1.0):
    return [
        SpillableJob(f"job {n}", blocks, 0, block_bytes, read_s) for n, (blocks, read_s) in enumerate(sizes)
    ]


@given(JOBS, st.integers(0, 16))
def test_blocks_of_one_size_go_to_disk_where_reading_costs_least(sizes, excess) -> None:
    jobs = jobs_of(sizes)
    found = blocks_on_disk(jobs, excess)
    total = sum(found.values())
    assert total == min(excess, sum(job.blocks for job in jobs))
    best = min(
        sum(count * job.read_s for count, job in zip(counts, jobs, strict=True))
        for counts in itertools.product(*(range(job.blocks + 1) for job in jobs))
        if sum(counts) == total
    )
    assert sum(found[job.job] * job.read_s for job in jobs) == pytest.approx(best)


def test_jobs_below_their_bound_come_first() -> None:
    # T_compute (B - 1) >= T_read (B_disk - 1): at most 1 + 9 / 3 = 4 blocks.
    bounded = SpillableJob("bounded", 10, 0, 1.0, read_s=3.0, compute_s=1.0)
    assert bounded.most_without_stop == 4
    free = SpillableJob("free", 10, 0, 1.0, read_s=5.0, compute_s=100.0)
    assert blocks_on_disk([bounded, free], 6) == {"bounded": 4, "free": 2}
    assert blocks_on_disk([bounded, free], 17) == {"bounded": 7, "free": 10}
    assert blocks_on_disk([bounded, free], 50) == {"bounded": 10, "free": 10}


@given(JOBS, st.integers(0, 20))
def test_nothing_comes_back_and_no_more_goes_than_there_is(sizes, excess) -> None:
    jobs = [replace(job, on_disk=job.blocks // 2) for job in jobs_of(sizes)]
    found = blocks_on_disk(jobs, excess)
    for job in jobs:
        assert job.on_disk <= found[job.job] <= job.blocks


class Machine:
    """Jobs that read what they have on disk while they compute what is in memory; the disk serves all."""

    def __init__(self, jobs: list[SpillableJob], limit_bytes: float) -> None:
        self.jobs, self.limit_bytes = {job.job: job for job in jobs}, limit_bytes

    @property
    def free_bytes(self) -> float:
        return self.limit_bytes - sum(
            (job.blocks - job.on_disk) * job.block_bytes for job in self.jobs.values()
        )

    def measured(self) -> list[SpillableJob]:
        return [replace(job, stop_s=stop_of(job)) for job in self.jobs.values()]

    def apply(self, change) -> None:
        for name, count in change.items():
            job = self.jobs[name]
            self.jobs[name] = replace(job, on_disk=job.on_disk + count)

    @property
    def stop_s(self) -> float:
        return sum(stop_of(job) for job in self.jobs.values())


def stop_of(job: SpillableJob) -> float:
    assert job.compute_s is not None
    return max(0.0, job.on_disk * job.read_s - job.compute_s * job.blocks)


MACHINES = st.lists(
    st.tuples(st.integers(2, 6), st.sampled_from([0.2, 0.5, 1.0, 3.0]), st.sampled_from([0.0, 0.1, 0.5])),
    min_size=1,
    max_size=3,
)


@given(MACHINES, st.floats(0.0, 1.0))
def test_climbing_ends_below_the_limit_without_waiting_more(sizes, share) -> None:
    jobs = [
        SpillableJob(f"job {n}", blocks, blocks, 1.0, read_s, compute_s)
        for n, (blocks, read_s, compute_s) in enumerate(sizes)
    ]
    machine = Machine(jobs, share * sum(job.blocks for job in jobs))
    before_s, climber = machine.stop_s, SpillClimber()
    for _ in range(200):
        change = climber.step(machine.measured(), machine.free_bytes)
        if not change:
            break
        machine.apply(change)
        assert machine.free_bytes >= 0
    else:
        raise AssertionError("it does not end")
    assert machine.stop_s <= before_s * 1.05 + 1e-9
    assert machine.free_bytes < 1.0 or not any(job.on_disk for job in machine.jobs.values())


def test_climbing_comes_near_the_best_of_all_choices() -> None:
    jobs = [
        SpillableJob("reads much", 6, 6, 1.0, 2.0, 0.1),
        SpillableJob("computes long", 6, 6, 1.0, 0.5, 3.0),
        SpillableJob("small", 4, 4, 1.0, 0.5, 0.2),
    ]
    machine, climber = Machine(jobs, 7.0), SpillClimber()
    while change := climber.step(machine.measured(), machine.free_bytes):
        machine.apply(change)
    best = min(
        sum(stop_of(replace(job, on_disk=count)) for job, count in zip(jobs, counts, strict=True))
        for counts in itertools.product(*(range(job.blocks + 1) for job in jobs))
        if sum(job.blocks - count for job, count in zip(jobs, counts, strict=True)) <= 7
    )
    assert machine.stop_s == pytest.approx(best)


def test_a_step_that_leaves_too_little_memory_is_not_tried_again() -> None:
    """A block in memory may take more than was estimated."""
    climber = SpillClimber()
    job = SpillableJob("job", 4, 4, 10.0, 1.0, 0.1, stop_s=3.0)
    taken = climber.step([job], 12.0)
    assert taken == {"job": -1}
    # The block has taken 16 bytes instead of 10.
    assert climber.step([replace(job, on_disk=3, stop_s=2.0)], -4.0) == {"job": 1}
    assert climber.step([job], 12.0) == {}
    climber.forget()
    assert climber.step([job], 12.0) == {"job": -1}


def test_a_step_that_others_have_undone_is_not_tried_again() -> None:
    climber = SpillClimber()
    job = SpillableJob("job", 4, 4, 10.0, 1.0, 0.1, stop_s=3.0)
    assert climber.step([job], 12.0) == {"job": -1}
    climber.overruled()
    assert climber.step([job], 12.0) == {}


@given(st.floats(1, 1e6), st.integers(1, 20), st.integers(1, 8), st.floats(0, 1e5), st.floats(0, 1))
def test_a_job_on_disk_takes_no_more_memory(inputs, blocks, machines, batch, alpha) -> None:
    job = JobMemory(inputs, work_bytes=10.0, data_blocks=blocks, batch_bytes=batch)
    assert job.fixed_on(machines) <= job.on(machines, alpha) <= job.on(machines)


def test_a_group_that_cannot_fit_with_all_samples_on_disk_is_refused() -> None:
    job = JobMemory(1000.0, model_bytes=60.0, data_blocks=100)
    assert job.on(1, 1.0) == 60.0 + 2 * 10.0
    adapting = MemoryLimit(170.0, alpha=None)
    assert adapting.holds([job, job], 1)
    assert not adapting.holds([job, job, job], 1)
    assert not MemoryLimit(170.0, alpha=0.0).holds([job], 1)
    assert not MemoryLimit(170.0, alpha=0.5).holds([job], 1)


def test_blocks_are_weighed_by_the_share_of_time_for_which_they_are_read() -> None:
    often = SpillableJob("often", 4, 0, 1.0, read_s=1.0, period_s=2.0)
    rarely = SpillableJob("rarely", 4, 0, 1.0, read_s=2.0, period_s=10.0)
    assert blocks_on_disk([often, rarely], 3) == {"often": 0, "rarely": 3}


@given(JOBS, st.floats(0.0, 20.0))
def test_all_blocks_come_back_that_fit(sizes, free_bytes) -> None:
    jobs = [replace(job, on_disk=job.blocks, stop_s=job.read_s) for job in jobs_of(sizes)]
    found = returns(jobs, free_bytes)
    assert -sum(found.values()) == min(int(free_bytes), sum(job.blocks for job in jobs))
    assert all(-job.blocks <= found.get(job.job, 0) <= 0 for job in jobs)


def test_jobs_that_wait_longest_come_back_first() -> None:
    waits = SpillableJob("waits", 4, 4, 1.0, 1.0, stop_s=3.0)
    reads = SpillableJob("reads", 4, 4, 1.0, 5.0)
    assert returns([reads, waits], 5.0) == {"waits": -4, "reads": -1}


def test_the_choice_is_made_anew_with_what_was_measured() -> None:
    often = SpillableJob("often", 8, 6, 1.0, read_s=1.0, compute_s=2.0, period_s=1.0)
    rarely = SpillableJob("rarely", 8, 2, 1.0, read_s=1.0, compute_s=2.0, period_s=10.0)
    climber = SpillClimber()
    assert climber.step([often, rarely], 0.0) == {"often": -6, "rarely": 6}
    # That was no good: jobs wait, and did not before.
    after = [replace(often, on_disk=0), replace(rarely, on_disk=8, stop_s=5.0)]
    assert climber.step(after, 0.0) == {"often": 6, "rarely": -6}
    assert climber.step([often, rarely], 0.0) == {}
