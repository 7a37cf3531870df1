"""Simulated jobs that share machines: times by hand, conservation, and agreement with the group model."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hpcbal.errors import HpcbalError, InputError
from hpcbal.paramserver.coscheduling.fixed import FixedGroups, Isolated, RandomGroups
from hpcbal.paramserver.coscheduling.harmony import Harmony
from hpcbal.paramserver.coscheduling.scheduler import GroupingPolicy, JobsView
from hpcbal.policies.grouping.groups import JobGroup, JobLoad, group_iteration_s
from hpcbal.policies.grouping.memory import JobMemory, MemoryLimit
from hpcbal.simulator.coscheduling.job import NAIVE, SharingDelays, SimulatedJob, SimulatedMachine, Turns
from hpcbal.simulator.coscheduling.record import SharingRun
from hpcbal.simulator.coscheduling.run import simulate_sharing

TWO = [SimulatedMachine(100.0)] * 2
# On two machines: pulls for 1 s, computes for 2 s, pushes for 1 s.
EVEN = SimulatedJob("even", 4.0, 10, dense_bytes=200.0)


def together(*jobs: SimulatedJob, machines: int = 2) -> GroupingPolicy:
    return FixedGroups([JobGroup(tuple(job.name for job in jobs), machines)])


def mix(count: int, seed: int) -> list[SimulatedJob]:
    """Jobs of many sorts, whose computing and communicating take 0.5 to 5 s on four machines."""
    rng = random.Random(seed)
    return [
        SimulatedJob(
            f"job{index}",
            4 * 0.5 * 10 ** rng.random(),
            rng.randint(20, 60),
            dense_bytes=100.0 * 0.25 * 10 ** rng.random(),
            sparse_bytes=100.0 * rng.random(),
            row_growth=rng.random(),
            arrives_s=rng.choice([0.0, 0.0, 40.0 * rng.random()]),
            state_bytes=100.0 * rng.random(),
        )
        for index in range(count)
    ]


@pytest.mark.parametrize("turns", [Turns(), Turns(is_synchronised=False), NAIVE])
def test_one_job_pulls_computes_and_pushes(turns: Turns) -> None:
    run = simulate_sharing([EVEN], TWO, Isolated(), turns=turns)
    # Its objective, at its end, pulls once more.
    assert run.makespan_s == pytest.approx(10 * (1 + 2 + 1) + 1)
    assert (run.cpu_use, run.network_use) == (pytest.approx(20 / 41), pytest.approx(21 / 41))


@pytest.mark.parametrize("machines", [1, 2, 3, 5, 8])
def test_the_share_of_a_machine_does_not_travel(machines: int) -> None:
    run = simulate_sharing([EVEN], [SimulatedMachine(100.0)] * machines, Isolated())
    pull_s = 2.0 * (1 - 1 / machines)
    assert run.makespan_s == pytest.approx(10 * (4.0 / machines + 2 * pull_s) + pull_s)


def test_no_worker_pulls_more_rows_than_there_are() -> None:
    job = replace(EVEN, dense_bytes=0.0, sparse_bytes=800.0, row_growth=0.5, most_sparse_bytes=300.0)
    assert job.pull_bytes(4, 4) == (0.0, pytest.approx(300.0 * 3 / 4))  # would be 800 / 2
    assert job.pull_bytes(16, 16) == (0.0, pytest.approx(800.0 / 4 * 15 / 16))


def test_two_jobs_fill_each_others_gaps() -> None:
    other = replace(EVEN, name="other")
    run = simulate_sharing([EVEN, other], TWO, together(EVEN, other))
    # The first pull, the last push and the last objective are alone.
    assert run.makespan_s == pytest.approx(40 + 2 + 1)


def test_two_jobs_that_take_no_turns_hinder_each_other() -> None:
    other = replace(EVEN, name="other")
    run = simulate_sharing([EVEN, other], TWO, together(EVEN, other), turns=NAIVE)
    # They pull, compute and push at the same time, at half the speed.
    assert run.makespan_s == pytest.approx(2 * 41)
    assert run.cpu_use == pytest.approx(20 / 41)


def test_cores_bind_jobs_that_compute_most() -> None:
    jobs = [SimulatedJob(f"job{i}", 8.0, 30, dense_bytes=40.0) for i in range(3)]
    run = simulate_sharing(jobs, TWO, together(*jobs))
    assert run.cpu_use == pytest.approx(1.0, abs=0.01)
    assert run.makespan_s == pytest.approx(30 * 3 * 4, rel=0.01)


def test_links_bind_jobs_that_communicate_most() -> None:
    jobs = [SimulatedJob(f"job{i}", 1.0, 30, dense_bytes=400.0) for i in range(3)]
    run = simulate_sharing(jobs, TWO, together(*jobs))
    assert run.network_use == pytest.approx(1.0, abs=0.01)
    assert run.makespan_s == pytest.approx(30 * 3 * 4 + 3 * 2, rel=0.01)


def test_a_pull_waits_for_the_slowest_link_and_a_step_for_the_slowest_cores() -> None:
    machines = [SimulatedMachine(100.0, speed=0.5), SimulatedMachine(50.0)]
    run = simulate_sharing([EVEN], machines, Isolated())
    assert run.makespan_s == pytest.approx(10 * (2 + 2 / 0.5 + 2) + 2)


def test_machines_get_whole_blocks_of_samples() -> None:
    run = simulate_sharing([replace(EVEN, data_blocks=5)], TWO, Isolated())
    assert run.makespan_s == pytest.approx(10 * (1 + 4 * 3 / 5 + 1) + 1)


def test_messages_take_time() -> None:
    run = simulate_sharing([EVEN], TWO, Isolated(), delays=SharingDelays(control_s=0.1))
    # A start: assigned, ready, initialise, initialised. A step: allowed, asked and granted twice, reported.
    # The end: an objective is asked for and reported, all pause and save, two messages till it is over.
    assert run.makespan_s == pytest.approx(10 * (4 + 6 * 0.1) + 1 + (4 + 2 + 4 + 2) * 0.1)


def test_a_later_job_is_counted_from_its_arrival() -> None:
    later = replace(EVEN, name="later", arrives_s=100.0)
    run = simulate_sharing([EVEN, later], TWO, Isolated())
    assert [job.completion_s for job in run.jobs] == [pytest.approx(41), pytest.approx(41)]
    assert run.makespan_s == pytest.approx(141)


def test_jobs_are_opened_one_after_the_other() -> None:
    jobs = [EVEN, replace(EVEN, name="beside"), replace(EVEN, name="later", arrives_s=100.0)]
    run = simulate_sharing(jobs, TWO, together(*jobs), delays=SharingDelays(open_s=3.0))
    # Those that are submitted together arrive together.
    assert [job.began_s for job in run.jobs] == [pytest.approx(6), pytest.approx(6), pytest.approx(103)]


WHOLE = JobMemory(work_bytes=1.0)
"""All memory of a machine, with the policy below."""


class FromTwoToOne:
    """Gives the first job both machines, and one each as soon as there are two jobs."""

    due_s = math.inf
    limit = MemoryLimit(1.0)

    def regroup(self, view: JobsView) -> Sequence[JobGroup] | None:
        return [JobGroup((job,), 2 // len(view.jobs)) for job in view.jobs]


def test_a_move_takes_the_time_to_write_and_read_its_bytes() -> None:
    job = replace(EVEN, state_bytes=30.0, input_bytes=50.0, memory=WHOLE)
    late = SimulatedJob("late", 1.0, 1, arrives_s=5.0, memory=WHOLE)
    delays = SharingDelays(start_s=0.25, stop_s=0.5, disk_bytes_per_s=10.0)
    run = simulate_sharing([job, late], TWO, FromTwoToOne(), delays=delays)
    moved = run.jobs[0]
    # To one machine, and back to two when the other job is done.
    saving_s, reading_s = 0.5 + 30 / 10 / 2, 0.25 + 80 / 10
    saving_again_s, reading_again_s = 0.5 + 30 / 10, 0.25 + 80 / 10 / 2
    assert moved.num_moves == 2
    assert moved.still_s == pytest.approx(saving_s + reading_s + saving_again_s + reading_again_s)
    # An iteration takes 4 s on one machine, too; its objective and its last checkpoint are part of the job.
    assert moved.ended_s == pytest.approx(0.25 + 50 / 10 / 2 + moved.still_s + 10 * 4 + 1 + saving_s)
    assert run.moving_machine_s == pytest.approx(
        2 * saving_s + reading_s + saving_again_s + 2 * reading_again_s
    )


def policies(seed: int) -> list[tuple[GroupingPolicy, Turns]]:
    return [
        (Harmony(), Turns()),
        (Isolated(), Turns(is_synchronised=False)),
        (RandomGroups(seed), NAIVE),
        (RandomGroups(seed), Turns()),
    ]


@pytest.mark.parametrize("kind", range(4))
@given(count=st.integers(1, 5), machines=st.integers(1, 9), seed=st.integers(0, 1000))
@settings(max_examples=8, deadline=None)
def test_all_that_jobs_need_is_computed_and_sent(kind: int, count: int, machines: int, seed: int) -> None:
    jobs = mix(count, seed)
    policy, turns = policies(seed)[kind]
    run = simulate_sharing(jobs, [SimulatedMachine(100.0, speed=2.0)] * machines, policy, turns=turns)
    assert all(job.ended_s > job.began_s >= job.arrived_s - 1e-9 for job in run.jobs)
    needed = sum(job.iterations * job.compute_s / 2.0 for job in jobs)
    if turns.uses_queues:
        assert sum(run.cpu_s.values()) == pytest.approx(needed)
    else:
        # Times are whole nanoseconds: a subtask ends up to one too late for each job that shares the cores.
        rounding_s = 1e-9 * count * machines * sum(job.iterations for job in jobs)
        assert sum(run.cpu_s.values()) <= needed + rounding_s
    assert run.cpu_use <= 1 + 1e-9
    assert run.network_use <= 1 + 1e-9


def test_the_same_arguments_give_the_same_result() -> None:
    def run() -> SharingRun:
        return simulate_sharing(mix(5, 3), [SimulatedMachine(100.0)] * 8, Harmony())

    assert run() == run()


@pytest.mark.parametrize("seed", range(6))
def test_groups_take_as_long_as_the_model_says(seed: int) -> None:
    jobs = [replace(job, arrives_s=0.0, iterations=60) for job in mix(4, seed)]
    machines = 4
    run = simulate_sharing(jobs, [SimulatedMachine(100.0)] * machines, together(*jobs, machines=machines))
    loads = []
    for job in jobs:
        pulled = sum(job.pull_bytes(machines, machines))
        loads.append(JobLoad(job.name, job.compute_s / machines, 2 * pulled / 100.0, machines))
    measured = run.groups[0].measured_s
    assert measured is not None
    assert measured == pytest.approx(group_iteration_s(loads, machines), rel=0.05)


def test_harmony_predicts_the_iterations_of_its_groups() -> None:
    jobs = [replace(job, iterations=200) for job in mix(8, 5)]
    run = simulate_sharing(jobs, [SimulatedMachine(100.0)] * 12, Harmony())
    errors = run.group_errors
    assert len(errors) >= 5
    assert errors[len(errors) // 2] <= 0.05


def test_harmony_is_faster_than_the_other_paradigms() -> None:
    memory = JobMemory(input_bytes=400.0)
    jobs = [replace(job, iterations=100, arrives_s=0.0, memory=memory) for job in mix(8, 2)]
    machines = [SimulatedMachine(100.0)] * 8
    harmony = simulate_sharing(jobs, machines, Harmony())
    isolated = simulate_sharing(jobs, machines, Isolated(MemoryLimit(100.0)))
    naive = [simulate_sharing(jobs, machines, RandomGroups(seed), turns=NAIVE) for seed in range(4)]
    assert harmony.makespan_s < isolated.makespan_s
    assert harmony.makespan_s < min(run.makespan_s for run in naive)


class Nothing:
    """Lets every job wait."""

    due_s = math.inf
    limit = MemoryLimit()

    def regroup(self, view: JobsView) -> Sequence[JobGroup] | None:
        return []


def test_jobs_that_wait_for_ever_are_told() -> None:
    with pytest.raises(HpcbalError, match="stands still at 0 s; these jobs are not done: even"):
        simulate_sharing([EVEN], TWO, Nothing())


def test_what_is_out_of_range_is_refused() -> None:
    with pytest.raises(InputError, match="even: compute_s: got 0"):
        replace(EVEN, compute_s=0)
    with pytest.raises(InputError, match="bandwidth: got 0"):
        SimulatedMachine(0)
    with pytest.raises(InputError, match="control_s: got -1"):
        SharingDelays(control_s=-1)
    with pytest.raises(InputError, match="allowed: unique names"):
        simulate_sharing([EVEN, EVEN], TWO, Isolated())
