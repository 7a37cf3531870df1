"""Groups of jobs: the model, against numbers by hand; the heuristics, against an exhaustive search."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
from grouping_search import best_score, cluster_utilization, random_loads, utilization
from hypothesis import given, settings
from hypothesis import strategies as st

from hpcbal.policies.grouping.arrays import LoadArrays
from hpcbal.policies.grouping.groups import JobGroup, JobLoad, group_iteration_s, score
from hpcbal.policies.grouping.memory import JobMemory, MemoryLimit
from hpcbal.policies.grouping.regrouping import (
    Losses,
    Regrouping,
    Situation,
    _moves,
    _standing_still_s,
    filled,
    regroup,
    similar_jobs,
)
from hpcbal.policies.grouping.scheduling import assign_jobs, deal_machines, interleaved, schedule

SECONDS = st.floats(0.1, 20.0)


def job(name: str, compute_s: float, network_s: float, machines: int = 4, **more) -> JobLoad:
    return JobLoad(name, compute_s, network_s, machines, **more)


def apart(name: str, compute_s: float, network_s: float, machines: int = 4, **more) -> JobLoad:
    """With servers on machines of their own, as in the paper's model."""
    return job(name, compute_s, network_s, machines, servers_apart=True, **more)


@st.composite
def jobs(draw, least: int = 1, most: int = 8) -> list[JobLoad]:
    count = draw(st.integers(least, most))
    is_apart = draw(st.booleans())
    return [
        JobLoad(
            f"j{index}",
            draw(SECONDS),
            draw(SECONDS),
            draw(st.integers(2, 6)),
            data_blocks=draw(st.one_of(st.none(), st.integers(2, 9))),
            parameter_blocks=draw(st.one_of(st.none(), st.integers(2, 9))),
            iterations_left=draw(st.floats(1, 1e4)),
            dense_share=draw(st.floats(0, 1)),
            servers_apart=is_apart,
        )
        for index in range(count)
    ]


def by_name(loads: Sequence[JobLoad]) -> dict[str, JobLoad]:
    return {load.name: load for load in loads}


# The model.


def test_a_group_is_bound_by_a_resource_or_by_a_job() -> None:
    """Eq. 4.1 to 4.3 of [PS], on the machines on which the jobs were measured."""
    bound_by_cores = [apart("a", 4, 1), apart("b", 3, 1)]
    assert group_iteration_s(bound_by_cores, 4) == 7
    assert utilization(bound_by_cores, 4) == (1, pytest.approx(2 / 7))
    bound_by_a_job = [apart("a", 4, 4), apart("b", 1, 1)]
    assert group_iteration_s(bound_by_a_job, 4) == 8
    assert utilization(bound_by_a_job, 4) == (5 / 8, 5 / 8)
    assert group_iteration_s(bound_by_a_job, 8) == 6  # half the computing, Eq. 4.2
    groups = [JobGroup(("a",), 4), JobGroup(("b",), 1)]
    cpu, network = cluster_utilization(groups, by_name(bound_by_a_job), 10)
    assert cpu == pytest.approx((4 * 0.5 + 1 * 0.8) / 10)
    assert network == pytest.approx((4 * 0.5 + 1 * 0.2) / 10)


def test_traffic_that_stays_on_its_machine_is_left_out() -> None:
    """Of m machines with workers and servers, 1/m of a dense table is at hand; sparse rows are fewer, too."""
    dense = job("d", 1, 3.0, 4)
    assert dense.network_on(1) == 0
    assert dense.network_on(2) == pytest.approx(3.0 * (1 / 2) / (3 / 4))
    sparse = job("s", 1, 3.0, 4, dense_share=0.0)
    assert sparse.network_on(8) == pytest.approx(3.0 * (7 / 8 / 8) / (3 / 4 / 4))
    assert apart("a", 1, 3.0).network_on(1) == 3.0
    alone = job("x", 1, 0.0, 1)
    assert not alone.knows_network
    assert alone.network_on(8) == 0


def test_an_iteration_waits_for_the_machine_with_most_blocks() -> None:
    """Of 16 blocks, one of two machines has 8, one of three 6, one of four or five 4."""
    load = job("x", 4.0, 2.0, 2, data_blocks=16, parameter_blocks=16)
    assert load.work_s == 8.0
    assert [load.compute_on(machines) for machines in (1, 2, 3, 4, 5, 16)] == [8, 4, 3, 2, 2, 0.5]
    # A machine sends its blocks to each other one: 8 to one, 6 to two, 4 to three, 4 to four.
    assert [load.network_on(machines) for machines in (2, 3, 4, 5)] == [2, 3, 3, 4]
    measured_on_three = job("x", 3.0, 3.0, 3, data_blocks=16, parameter_blocks=16)
    assert (measured_on_three.compute_on(2), measured_on_three.network_on(2)) == (4, 2)
    # Cores of machines with fewer blocks are idle for a while.
    assert utilization([load], 3) == (8 / 3 / 6, 3 / 6)


def test_machines_that_bring_nothing_alone_are_dealt_out_together() -> None:
    """With 4 blocks, three machines are no faster than two."""
    loads = [apart("a", 4.0, 0.5, 1, data_blocks=4), apart("b", 1.0, 0.5, 1, data_blocks=1)]
    assert deal_machines(LoadArrays.of(loads), [[0], [1]], 5) == [4, 1]
    assert deal_machines(LoadArrays.of(loads), [[0], [1]], 4) == [2, 1]


@given(jobs(), st.integers(1, 12))
def test_arrays_count_as_loads_do(loads, machines) -> None:
    arrays = LoadArrays.of(loads)
    assert arrays.compute_on(machines) == pytest.approx([load.compute_on(machines) for load in loads])
    assert arrays.network_on(machines) == pytest.approx([load.network_on(machines) for load in loads])
    halves = [group for group in (range(0, len(loads), 2), range(1, len(loads), 2)) if len(group)]
    given_machines = [machines] * len(halves)
    groups = [JobGroup(tuple(loads[i].name for i in half), machines) for half in halves]
    wanted = score(groups, by_name(loads), 2 * machines)
    assert arrays.score([list(half) for half in halves], given_machines, 2 * machines) == pytest.approx(
        wanted
    )


# Algorithm 2.


def test_long_jobs_are_together_and_opposites_too() -> None:
    compute, network = np.array([9.0, 1.0, 3.0, 0.5]), np.array([1.0, 9.0, 0.5, 3.0])
    assert [sorted(group) for group in assign_jobs(compute, network, 2)] == [[0, 1], [2, 3]]


def test_a_job_that_is_left_over_goes_where_it_balances_and_is_never_the_longest() -> None:
    """One group computes longer, the other one communicates longer; the fifth job computes."""
    compute = np.array([10.0, 3.0, 1.0, 1.0, 2.0])
    network = np.array([1.0, 6.0, 4.0, 3.0, 1.0])
    groups = [sorted(group) for group in assign_jobs(compute, network, 2)]
    (of_last,) = (group for group in groups if 4 in group)
    assert 0 not in of_last


@given(jobs(1, 12), st.data())
def test_every_job_is_in_one_group(loads, data) -> None:
    count = data.draw(st.integers(1, len(loads)))
    arrays = LoadArrays.of(loads)
    groups = assign_jobs(arrays.compute_on(4), arrays.network_on(4), count)
    assert sorted(itertools.chain(*groups)) == list(range(len(loads)))
    assert all(len(group) >= len(loads) // count for group in groups)


@given(jobs(1, 6), st.integers(0, 20))
def test_machines_are_dealt_out_as_long_as_any_job_becomes_faster(loads, more) -> None:
    arrays = LoadArrays.of(loads)
    groups = [[index] for index in range(len(loads))]
    machines = len(loads) + more
    dealt = deal_machines(arrays, groups, machines)
    assert dealt is not None
    assert all(
        1 <= number <= (load.most_machines or machines) for number, load in zip(dealt, loads, strict=True)
    )
    for number, load in zip(dealt, loads, strict=True):
        assert number == 1 or load.iteration_on(number) < load.iteration_on(number - 1)
        if sum(dealt) < machines and number < (load.most_machines or machines):
            assert load.iteration_on(number + 1) >= load.iteration_on(number) * (1 - 1e-9)


# Algorithm 1.


def test_groupings_also_begin_with_some_jobs_of_both_kinds() -> None:
    """However many of one kind come first."""
    talking = [job(f"t{i}", 0.1, 0.5, 2) for i in range(3)]
    computing = [job(f"c{i}", 0.5, 0.1, 2) for i in range(5)]
    assert interleaved(LoadArrays.of([*talking, *computing]), 8) == [0, 3, 1, 4, 2, 5, 6, 7]
    assert interleaved(LoadArrays.of(computing), 8) == [0, 1, 2, 3, 4]


def test_it_comes_near_an_exhaustive_search_on_the_whole() -> None:
    """Within 3 % on the mean, and 12 % at worst; [PS] Fig. 4.17: about 2 %."""
    rng = np.random.default_rng(5)
    shares_of_best = []
    for _ in range(40):
        count, machines = int(rng.integers(2, 6)), int(rng.integers(2, 8))
        loads = random_loads(count, rng)
        found = schedule(loads, machines)
        shares_of_best.append(score(found.groups, by_name(loads), machines) / best_score(loads, machines))
    assert np.mean(shares_of_best) >= 0.97
    assert min(shares_of_best) >= 0.88


@settings(deadline=None)
@given(jobs(1, 9), st.integers(1, 12))
def test_a_schedule_places_every_job_once_or_lets_it_wait(loads, machines) -> None:
    found = schedule(loads, machines)
    placed = [name for group in found.groups for name in group.jobs]
    assert sorted([*placed, *found.waiting]) == sorted(by_name(loads))
    assert all(group.machines >= 1 and group.jobs for group in found.groups)
    total = sum(group.machines for group in found.groups)
    assert total <= machines
    if all(load.most_machines is None and load.servers_apart for load in loads):
        assert total == machines
    assert schedule(loads, machines) == found
    assert found.groups, "at least one job runs"


@settings(deadline=None)
@given(jobs(1, 7), st.integers(1, 8), st.integers(1, 12))
def test_no_group_exceeds_its_memory(loads, machines, memory) -> None:
    loads = [replace(load, memory=JobMemory(1 + index)) for index, load in enumerate(loads)]

    def fits(group: Sequence[JobLoad], count: int) -> bool:
        return MemoryLimit(memory).holds([load.memory for load in group], count)

    for group in schedule(loads, machines, fits).groups:
        assert fits([by_name(loads)[name] for name in group.jobs], group.machines)


@settings(deadline=None)
@given(jobs(1, 12), st.integers(1, 8), st.integers(1, 6))
def test_memory_and_parts_bound_groups_together_and_what_fits_nowhere_holds_up_nobody(
    loads, machines, memory
) -> None:
    loads = [replace(load, memory=JobMemory(1 + 7 * index)) for index, load in enumerate(reversed(loads))]

    def fits(group: Sequence[JobLoad], count: int) -> bool:
        return MemoryLimit(memory).holds([load.memory for load in group], count)

    found = schedule(loads, machines, fits)
    known = by_name(loads)
    for group in found.groups:
        of_group = [known[name] for name in group.jobs]
        assert fits(of_group, group.machines)
        assert group.machines <= min(load.most_machines or machines for load in of_group)
    could_run = any(fits([load], min(machines, load.most_machines or machines)) for load in loads)
    assert bool(found.groups) == could_run


def test_no_jobs_need_no_groups() -> None:
    found = schedule([], 4)
    assert (found.groups, found.waiting) == ((), ())


def test_many_jobs_use_almost_everything() -> None:
    rng = np.random.default_rng(2)
    loads = [apart(f"j{i}", *(10 ** rng.uniform(0, 1.3, 2)), machines=16) for i in range(400)]
    found = schedule(loads, 500)
    assert min(cluster_utilization(found.groups, by_name(loads), 500)) >= 0.97


def test_few_jobs_are_preferred_unless_more_raise_the_score_much() -> None:
    rng = np.random.default_rng(2)
    loads = [apart(f"j{i}", *(10 ** rng.uniform(0, 1.3, 2))) for i in range(60)]
    most = schedule(loads, 30)
    few = schedule(loads, 30, job_gain=0.005)
    known = by_name(loads)
    count, fewer = (sum(len(group.jobs) for group in each.groups) for each in (most, few))
    assert fewer < count
    given_up = score(most.groups, known, 30) - score(few.groups, known, 30)
    assert 0 < given_up <= 0.005 * (count - fewer)


# Regrouping.


def situation(groups: Sequence[JobGroup], loads: Sequence[JobLoad], machines: int, **more) -> Situation:
    return Situation(machines, by_name(loads), tuple(groups), **more)


def test_a_similar_job_takes_the_place_of_one_that_has_ended() -> None:
    ended = apart("ended", 4.0, 1.0, iterations_left=0.0)
    waiting = [apart("other", 1.0, 0.2), apart("similar", 4.1, 0.95)]
    assert [load.name for load in similar_jobs(ended, 4, waiting)] == ["similar"]


def test_jobs_that_wait_join_the_group_that_gains_most_or_go_on_waiting() -> None:
    groups = [JobGroup(("computes",), 4), JobGroup(("talks",), 4)]
    loads = by_name([apart("computes", 4.0, 0.5), apart("talks", 0.5, 4.0)])
    talks_too = apart("talks-too", 0.4, 3.0)
    assert filled(groups, [0, 1], [talks_too], loads, min_gain=0.05) == (
        JobGroup(("computes", "talks-too"), 4),
        groups[1],
    )
    assert filled(groups, [1], [apart("as-well", 0.5, 4.0)], loads, min_gain=0.3) == tuple(groups)
    full = filled(groups, [0, 1], [talks_too], loads, min_gain=0.05, fits=lambda jobs, _: len(jobs) == 1)
    assert full == tuple(groups)


def test_the_job_that_complements_a_group_best_joins_it_first_whatever_the_order() -> None:
    loads = by_name([apart("talks", 0.5, 4.0)])
    waiting = [apart("talks-too", 0.4, 3.0), apart("computes", 4.0, 0.5)]
    found = filled([JobGroup(("talks",), 4)], [0], waiting, loads, min_gain=0.05)
    assert found == (JobGroup(("talks", "computes"), 4),)


def standing_still_s(
    before: Sequence[JobGroup], after: Sequence[JobGroup], loads: dict[str, JobLoad]
) -> float:
    return _standing_still_s(_moves(before, after), loads)


def test_a_job_that_is_stopped_costs_its_start_though_it_waits() -> None:
    loads = by_name([apart("a", 1.0, 1.0, loading_s=3.0), apart("b", 1.0, 1.0, loading_s=5.0)])
    assert standing_still_s([JobGroup(("a", "b"), 4)], [JobGroup(("a",), 4)], loads) == 5.0 * 4 / 2


def test_a_bunch_of_jobs_may_be_similar_too() -> None:
    ended = apart("ended", 4.0, 2.0)
    waiting = [apart("a", 2.5, 1.0), apart("b", 9.0, 1.0), apart("c", 1.5, 1.0)]
    assert [load.name for load in similar_jobs(ended, 4, waiting)] == ["a", "c"]
    assert similar_jobs(ended, 4, waiting[:2]) == []


def test_small_gains_are_not_worth_a_move() -> None:
    loads = [apart("a", 4, 3.9, iterations_left=1000), apart("b", 3.9, 4, iterations_left=1000)]
    assert regroup(situation([JobGroup(("a", "b"), 4)], loads, 4), min_gain=0.05) == Regrouping()


def test_a_job_whose_group_gains_another_one_does_not_move() -> None:
    loads = by_name(
        apart(name, 1, 1, 2, loading_s=seconds) for name, seconds in {"a": 8, "b": 1, "c": 2}.items()
    )
    before = [JobGroup(("a",), 2), JobGroup(("b", "c"), 2)]
    assert standing_still_s(before, [JobGroup(("a", "new"), 2), JobGroup(("b", "c"), 2)], loads) == 0
    assert standing_still_s(before, [JobGroup(("a", "b"), 2), JobGroup(("c",), 2)], loads) == 1
    on_twice_as_many = standing_still_s(before, [JobGroup(("a", "b", "c"), 4)], loads)
    assert on_twice_as_many == pytest.approx((8 + 1 + 2) / 2 * 4 / 3)


def test_a_move_takes_less_time_to_more_machines() -> None:
    load = job("a", 1.0, 1.0, 2, loading_s=6.0, saving_s=1.0, data_blocks=9)  # 5 blocks on a machine of two
    assert load.moving_to(2) == 7.0
    assert load.moving_to(1) == pytest.approx(1.0 + 6 * 9 / 5)
    assert load.moving_to(4) == pytest.approx(1.0 + 6 * 3 / 5)
    assert load.moving_to(100) == pytest.approx(1.0 + 6 / 5)
    assert load.moving_to(100, start_s=2.0) == pytest.approx(1.0 + 2.0 + 4 / 5)
    assert load.moving_to(100, start_s=7.0) == 7.0, "all of it is the same everywhere"


def test_a_change_takes_the_start_of_a_job_into_account() -> None:
    loads = [apart("job", 8, 0.1, 2, loading_s=40.0)]
    now = situation([JobGroup(("job",), 2)], loads, 8)
    reads, starts = (regroup(replace(now, start_s=start_s), min_gain=0.05) for start_s in (0.0, 40.0))
    # On 8 machines instead of 2 it stands still for 10 s if it only reads.
    assert starts.due_in_s == pytest.approx(4 * reads.due_in_s)


def test_groups_change_when_waiting_has_cost_enough() -> None:
    loads = [apart("a", 4, 1, 2), apart("b", 4, 1, 2), apart("c", 1, 4, 2), apart("d", 1, 4, 2)]
    groups = [JobGroup(("a", "b"), 2), JobGroup(("c", "d"), 2)]

    def found(lost_s: float, loading_s: float = 10.0) -> Regrouping:
        now = situation(groups, [replace(load, loading_s=loading_s) for load in loads], 4)
        return regroup(replace(now, lost_s=lost_s), min_gain=0.05)

    waits = found(0.0)
    assert waits.groups is None
    assert 0 < waits.loss < 4
    lost_s = waits.loss * waits.due_in_s  # until then, in machine-seconds
    assert found(0.99 * lost_s).groups is None
    assert found(0.5 * lost_s).due_in_s == pytest.approx(waits.due_in_s / 2)
    better = found(1.01 * lost_s).groups
    assert better is not None
    for group in better:
        assert len({"ab".count(name) for name in group.jobs}) == 2, "opposites share machines"
    assert found(1.01 * lost_s, loading_s=20.0).groups is None
    assert found(0.0, loading_s=0.0).groups == better, "what costs nothing need not wait"


def test_a_cheap_change_does_not_wait_for_a_better_one_that_costs_more() -> None:
    """A job that runs on one machine of ten has its start again to lose; the other nine are idle."""
    loads = [apart("small", 8, 0.1, loading_s=1.0), apart("other", 8, 8, loading_s=1000.0)]
    now = situation([JobGroup(("small",), 1), JobGroup(("other",), 4)], loads, 10)
    found = regroup(replace(now, lost_s=500.0), min_gain=0.05).groups
    assert found is not None
    assert JobGroup(("other",), 4) in found
    assert max(group.machines for group in found if group.jobs == ("small",)) > 1


def test_losses_add_up_and_end_with_a_change() -> None:
    losses = Losses()
    losses.add_until(100.0)
    assert losses.lost_s == 0.0
    losses.note(Regrouping(None, 0.5, 30.0))
    assert losses.due_s == 130.0
    losses.add_until(110.0)
    assert losses.lost_s == 5.0
    losses.add_until(120.0)
    assert losses.lost_s == 5.0, "nobody has said that anything was lost"
    assert losses.due_s == math.inf
    losses.note(Regrouping((), due_in_s=0.0))
    assert losses.lost_s == 0.0
    assert losses.due_s == 120.0, "what could change next is not known yet"


def test_losses_end_when_nothing_would_be_better() -> None:
    losses = Losses()
    losses.note(Regrouping(None, 0.5, 30.0))
    losses.add_until(10.0)
    losses.note(Regrouping())
    assert losses.lost_s == 0.0
    assert losses.due_s == math.inf


def test_a_job_does_not_move_for_longer_than_it_has_left() -> None:
    load = apart("job", 8, 0.1, 2, loading_s=50.0)
    groups = [JobGroup(("job",), 2)]

    def found(left: float | None) -> Regrouping:
        now = situation(groups, [replace(load, iterations_left=left)], 4)
        return regroup(replace(now, lost_s=1e6), min_gain=0.05)

    assert found(1.0) == Regrouping()
    assert found(1000.0).groups == found(None).groups == (JobGroup(("job",), 4),)


def test_of_changes_that_cost_nothing_the_best_is_made() -> None:
    loads = [apart(name, 4, 1, 2, loading_s=0.0) for name in "ab"]
    loads += [apart(name, 1, 4, 2, loading_s=0.0) for name in "cd"]
    now = situation(
        [JobGroup(("a",), 1), JobGroup(("b",), 1), JobGroup(("c",), 1), JobGroup(("d",), 1)], loads, 4
    )
    free = regroup(now, min_gain=0.05).groups
    assert free is not None
    paid = regroup(replace(now, lost_s=1e9), min_gain=0.05).groups
    assert paid is not None
    assert score(free, now.loads, 4) == score(paid, now.loads, 4)


def test_all_groups_in_which_a_job_has_ended_take_part_first() -> None:
    """They use half of their machines each; only together are they better."""
    loads = [apart("a", 8, 0.5, 4), apart("b", 0.5, 8, 4), *(apart(name, 1, 1, 2) for name in "cdef")]
    groups = [JobGroup(("a",), 4), JobGroup(("b",), 4), JobGroup(("c", "d"), 2), JobGroup(("e", "f"), 2)]
    now = replace(situation(groups, loads, 12), lost_s=1e9)
    found = regroup(replace(now, beside_ended=frozenset("ab")), min_gain=0.05).groups
    assert found is not None
    assert set(groups[2:]) <= set(found)
    assert ("a", "b") in [tuple(sorted(group.jobs)) for group in found]


@settings(deadline=None)
@given(jobs(2, 7), st.integers(2, 8), st.data())
def test_new_groups_are_whole_and_better(loads, machines, data) -> None:
    present = schedule(loads[: data.draw(st.integers(1, len(loads)))], machines).groups
    beside_ended = data.draw(st.sets(st.sampled_from([load.name for load in loads])))
    now = situation(present, loads, machines, beside_ended=frozenset(beside_ended))
    now = replace(now, lost_s=data.draw(st.floats(0, 1e4)))
    result = regroup(now, min_gain=0.05)
    assert result.due_in_s >= -1e-6
    found = result.groups
    if found is None:
        return
    names = [name for group in found for name in group.jobs]
    assert len(names) == len(set(names))
    assert sum(group.machines for group in found) <= machines
    known = by_name(loads)
    assert score(found, known, machines) > 1.05 * score(present, known, machines)
    running = {job for group in present for job in group.jobs}
    assert running <= set(names), "no job that runs is left to wait"
