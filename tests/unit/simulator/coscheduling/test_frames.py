"""Jobs that share machines frame by frame: times by hand, checkpoints, and agreement with flows."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import pytest

from hpcbal.errors import InputError
from hpcbal.paramserver.api.update import Table
from hpcbal.paramserver.coscheduling.fixed import FixedGroups, Isolated, RandomGroups
from hpcbal.paramserver.coscheduling.harmony import Harmony
from hpcbal.paramserver.coscheduling.scheduler import GroupingPolicy, JobsView
from hpcbal.policies.grouping.groups import JobGroup, JobLoad
from hpcbal.policies.grouping.memory import JobMemory, MemoryLimit
from hpcbal.simulator.coscheduling.job import NAIVE, SharingDelays, SimulatedJob, SimulatedMachine, Turns
from hpcbal.simulator.coscheduling.record import SharingRun
from hpcbal.simulator.coscheduling.run import simulate_sharing
from hpcbal.simulator.paramserver.job import ServingJob

BANDWIDTH = 1e6
STEPS, EPOCHS = 5, 2
ITERATIONS = STEPS * EPOCHS
NEARLY = 2e-3
"""Relative: times by hand leave out headers."""

TWO = [SimulatedMachine(BANDWIDTH)] * 2


def job_of(
    name: str, compute_s: float = 4.0, table_s: float = 2.0, **keys: Any
) -> tuple[SimulatedJob, ServingJob]:
    """A job that pulls for half of `table_s` on two machines, computes for half of `compute_s`, and pushes.

    It has 8 data blocks; its objective is computed at its end, and pulls once more.
    """
    table = Table("model", 1000, round(BANDWIDTH * table_s / 8000))
    frames = ServingJob(80, 8, 16, 0, (table,), (8,), max_epochs=EPOCHS)
    frames = replace(frames, objective_every=EPOCHS, **keys)
    job = SimulatedJob(
        name, compute_s, ITERATIONS, dense_bytes=float(table.num_bytes), state_bytes=100.0, data_blocks=8
    )
    return job, frames


def measured(job: tuple[SimulatedJob, ServingJob], machines: int) -> JobLoad:
    """Return the load of a job alone, as the scheduler hears it."""
    loads: list[JobLoad] = []

    def believe(load: JobLoad) -> JobLoad:
        loads.append(load)
        return load

    simulate([job], together(job[0].name, machines=machines), machines, distort=believe)
    return loads[-1]


def simulate(
    jobs: Sequence[tuple[SimulatedJob, ServingJob]], policy: GroupingPolicy, machines: int = 2, **keys: Any
) -> SharingRun:
    frames = {job.name: each for job, each in jobs}
    all_machines = [SimulatedMachine(BANDWIDTH)] * machines
    return simulate_sharing([job for job, _ in jobs], all_machines, policy, frames=frames, **keys)


def together(*names: str, machines: int = 2) -> GroupingPolicy:
    return FixedGroups([JobGroup(names, machines)])


@pytest.mark.parametrize("turns", [Turns(), Turns(is_synchronised=False), NAIVE])
def test_a_job_takes_its_steps_and_computes_its_objective(turns: Turns) -> None:
    run = simulate([job_of("a")], Isolated(), turns=turns)
    assert run.makespan_s == pytest.approx(ITERATIONS * (1 + 2 + 1) + 1, rel=NEARLY)
    assert run.cpu_use == pytest.approx(ITERATIONS * 2 / run.makespan_s)
    assert run.network_use == pytest.approx((ITERATIONS * 2 + 1) / run.makespan_s, rel=NEARLY)


def test_objectives_are_computed_as_often_as_they_are_due() -> None:
    job, frames = job_of("a")
    runs = [simulate([(job, replace(frames, objective_every=every))], Isolated()) for every in (1, 2)]
    assert runs[0].makespan_s - runs[1].makespan_s == pytest.approx(1, rel=NEARLY)


def test_data_blocks_push_before_the_first_step() -> None:
    job, frames = job_of("a")
    runs = [
        simulate([(job, replace(frames, first_push=pushes))], Isolated())
        for pushes in ({}, {"model": [0.5 * BANDWIDTH]})
    ]
    # Four blocks at each machine, half of whose bytes stay there.
    assert runs[1].makespan_s - runs[0].makespan_s == pytest.approx(4 * 0.25, rel=NEARLY)


def test_a_worker_that_is_behind_waits_for_the_push_of_the_other_one() -> None:
    """Blocks differ, so workers leave lock-step: an acknowledgement waits behind the next push."""
    job, frames = job_of("a", first_push={"model": [0.5 * BANDWIDTH]})
    delays = SharingDelays(control_s=1e-3, send_s=1e-3, notice_s=1e-3, payload_s=2e-3)
    begun_s = []
    for pushes in ([0.5 * BANDWIDTH], [0.4 * BANDWIDTH, 0.6 * BANDWIDTH, 0.45 * BANDWIDTH]):
        run = simulate(
            [(job, replace(frames, first_push={"model": pushes}))], Isolated(), delays=delays, seed=3
        )
        begun_s.append(run.makespan_s)
    assert begun_s[1] > begun_s[0] + 0.1


def test_a_block_of_a_new_job_waits_for_the_cores_that_another_job_uses() -> None:
    busy = job_of("busy", compute_s=40.0, table_s=0.008)
    late, frames = job_of("late", compute_s=0.008, table_s=0.8, first_push={"model": [1e5]})
    late = replace(late, arrives_s=1.0)
    done_s = []
    for blocks in (4, 8):
        some = replace(frames, num_data_blocks=blocks, max_epochs=1)
        run = simulate([busy, (late, some)], together("busy", "late"))
        done_s.append(run.jobs[1].ended_s)
        alone = simulate([(late, some)], together("late"))
        assert alone.makespan_s == pytest.approx(1 + blocks / 2 * 0.05 + STEPS * 0.8 + 0.4, rel=0.01)
    # While it pushes its third block, the other job begins to compute, and the fourth one waits for 20 s.
    assert done_s[1] - done_s[0] > 19.9


def test_two_jobs_fill_each_others_gaps() -> None:
    jobs = [job_of("a"), job_of("b")]
    run = simulate(jobs, together("a", "b"))
    # The first pull, the last push and two objectives.
    assert run.makespan_s == pytest.approx(40 + 2 + 1, rel=0.05)


def test_a_short_pull_does_not_wait_for_a_long_one_after_its_push() -> None:
    """One job computes for 5.5 s and communicates twice for 1 s, the other for 0.5 and twice 2.5 s: the first
    one alone takes 7.5 s, and the other has room beside it. If the network went to whoever asks first, the
    long pull would come between the short push and the short pull in each iteration."""
    jobs = [job_of("cpu", compute_s=11.0, table_s=2.0), job_of("net", compute_s=1.0, table_s=5.0)]
    run = simulate(jobs, together("cpu", "net"))
    assert run.groups[0].measured_s == pytest.approx(7.5, rel=0.02)


def test_two_jobs_that_take_no_turns_hinder_each_other() -> None:
    run = simulate([job_of("a"), job_of("b")], together("a", "b"), turns=NAIVE)
    in_turns = simulate([job_of("a"), job_of("b")], together("a", "b"))
    one_after_the_other_s = 2 * 41
    assert 1.3 * in_turns.makespan_s < run.makespan_s < one_after_the_other_s


WHOLE = JobMemory(work_bytes=1.0)
"""All memory of a machine, with the policy below."""


class Moves:
    """Gives a job two machines, and one as soon as there are two jobs."""

    due_s = math.inf
    limit = MemoryLimit(1.0)

    def regroup(self, view: JobsView) -> Sequence[JobGroup] | None:
        return [JobGroup((job,), 2 // len(view.jobs)) for job in view.jobs]


def test_a_job_that_moves_goes_on_from_its_checkpoint() -> None:
    (job, frames), (late, others) = job_of("moves", table_s=0.008), job_of("late", table_s=0.008)
    late = replace(late, arrives_s=5.0)
    delays = SharingDelays(start_s=0.25, stop_s=0.5, disk_bytes_per_s=100.0)
    run = simulate([(job, frames), (late, others)], Moves(), delays=delays)
    moved = run.jobs[0]
    assert moved.num_moves == 1
    # It stops after its third step, at 0.25 + 3 * 2 s, and writes 50 bytes; on one machine it reads 100.
    stop_s = 0.5 + 0.5
    start_s = 0.25 + 1.0
    assert moved.still_s == pytest.approx(stop_s + start_s, rel=0.01)
    # The checkpoint at the end is part of the job; the other job is done later.
    assert moved.ended_s == pytest.approx(6.25 + stop_s + start_s + 7 * 4 + 0.5 + 1.0, rel=0.01)
    computed = sum(run.cpu_s.values())
    assert computed == pytest.approx(2 * ITERATIONS * 4)  # no step is lost, and none is done twice


def test_starts_share_the_cores_of_the_host() -> None:
    jobs = [job_of("a"), job_of("b")]
    one, two = (
        simulate(jobs, Isolated(), machines=4, delays=SharingDelays(start_s=1.0, host_cores=cores)).makespan_s
        for cores in (1, 4)
    )
    # Two jobs start on two machines each.
    assert one - two == pytest.approx(3)


@pytest.mark.parametrize("arrives_s", [0.1, 0.5, 1.2])
def test_a_job_that_must_move_before_its_first_step_begins_anew(arrives_s: float) -> None:
    """While it loads, or pushes its first block, or its second one."""
    job, frames = job_of("moves", first_push={"model": [1e6]})
    late, others = job_of("late")
    job, late = replace(job, memory=WHOLE), replace(late, arrives_s=arrives_s, memory=WHOLE)
    delays = SharingDelays(0.001, start_s=0.25)
    run = simulate([(job, frames), (late, others)], Moves(), delays=delays)
    assert run.jobs[0].num_moves == 1
    assert sum(run.cpu_s.values()) == pytest.approx(2 * ITERATIONS * 4)
    # On one machine nothing travels.
    begins_s = run.jobs[0].ended_s - ITERATIONS * 4 - 0.25
    assert arrives_s < begins_s < arrives_s + 2.5


@pytest.mark.parametrize("turns", [Turns(), Turns(is_synchronised=False), NAIVE])
@pytest.mark.parametrize("policy", [Harmony, lambda: Isolated(MemoryLimit(None)), lambda: RandomGroups(1)])
def test_all_jobs_compute_all_of_their_steps(turns: Turns, policy: Any) -> None:
    jobs = [
        job_of(f"job{i}", compute_s=2.0 + i, table_s=0.4 + 0.4 * (i % 3), first_push={"model": [1e4, 3e4]})
        for i in range(5)
    ]
    delays = SharingDelays(0.001, send_s=0.001, notice_s=0.001, payload_s=0.002)
    run = simulate(jobs, policy(), machines=3, turns=turns, delays=delays)
    assert sum(run.cpu_s.values()) == pytest.approx(sum(ITERATIONS * job.compute_s for job, _ in jobs))
    assert all(job.ended_s > job.began_s for job in run.jobs)


def test_a_push_to_four_machines_takes_no_longer_than_its_bytes() -> None:
    """Every machine sends to another one at each time, so no link waits for another."""
    pull_s = push_s = 4.0 * 3 / 4
    load = measured(job_of("job", table_s=4.0), machines=4)
    assert load.network_s == pytest.approx(pull_s + push_s, rel=0.02)


def test_a_job_whose_tables_are_dense_is_known_as_such() -> None:
    """A machine's traffic for others is not that of its own worker."""
    assert measured(job_of("job"), machines=2).dense_share == pytest.approx(1.0, abs=0.01)


@pytest.mark.parametrize("machines", [1, 2, 4])
def test_flows_agree_where_frames_do_not_meet(machines: int) -> None:
    jobs = [job_of(f"job{i}", compute_s=8.0 - i, table_s=0.4 + 0.2 * i) for i in range(3)]
    names = tuple(job.name for job, _ in jobs)
    frames = simulate(jobs, together(*names, machines=machines), machines=machines)
    flows = simulate_sharing(
        [job for job, _ in jobs],
        [SimulatedMachine(BANDWIDTH)] * machines,
        together(*names, machines=machines),
    )
    assert frames.makespan_s == pytest.approx(flows.makespan_s, rel=0.01)


def test_the_same_seed_gives_the_same_run() -> None:
    jobs = [job_of(f"job{i}", first_push={"model": [1e5, 2e5]}) for i in range(3)]
    delays = SharingDelays(0.001, send_s=0.001, notice_s=0.001, payload_s=0.002)
    runs = [simulate(jobs, Harmony(), machines=3, delays=delays, seed=seed) for seed in (1, 1, 2)]
    assert runs[0] == runs[1]
    assert runs[0] != runs[2]


@pytest.mark.parametrize("frames", [{}, {"other": job_of("a")[1]}])
def test_every_job_needs_its_frames(frames: Mapping[str, ServingJob]) -> None:
    with pytest.raises(InputError, match=r"frames: got .* allowed: the names of all jobs"):
        simulate_sharing([job_of("a")[0]], TWO, Isolated(), frames=frames)
