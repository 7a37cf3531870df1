"""Jobs are brought to where a policy wants them, whatever it wants."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hpcbal.paramserver.coscheduling.fixed import FixedGroups, Isolated, RandomGroups
from hpcbal.paramserver.coscheduling.harmony import Harmony, first_groups, joined, measured_instead
from hpcbal.paramserver.coscheduling.scheduler import (
    Arrived,
    Ended,
    Event,
    Grouped,
    Instruction,
    JobScheduler,
    JobsView,
    Profiled,
    Rested,
    Sharing,
    StartJob,
    StopJob,
    place,
)
from hpcbal.policies.grouping.groups import JobGroup, JobLoad
from hpcbal.policies.grouping.memory import JobMemory, MemoryLimit


class Scripted:
    """Wants one grouping after the other."""

    due_s = math.inf

    def __init__(self, *groupings: Sequence[JobGroup] | None) -> None:
        self.limit = MemoryLimit()
        self._groupings = list(groupings)

    def regroup(self, view: JobsView) -> Sequence[JobGroup] | None:
        return self._groupings.pop(0) if self._groupings else None


def load(name: str, compute_s: float = 1.0, network_s: float = 1.0, machines: int = 2) -> JobLoad:
    return JobLoad(name, compute_s, network_s, machines, iterations_left=100.0)


def test_jobs_start_where_the_policy_wants_them() -> None:
    scheduler = JobScheduler((1, 2, 3), Scripted([JobGroup(("a", "b"), 2), JobGroup(("c",), 1)]))
    groups = (Sharing(("a", "b"), (1, 2)), Sharing(("c",), (3,)))
    assert scheduler.handle(Arrived(("a", "b", "c", "d"))) == [
        Grouped(groups, ("d",)),
        StartJob("a", (1, 2)),
        StartJob("b", (1, 2)),
        StartJob("c", (3,)),
    ]
    assert scheduler.waiting == ("d",)
    assert scheduler.state_of("d") == "waiting"


def test_a_job_moves_by_a_stop_and_a_start_and_others_go_on() -> None:
    first = [JobGroup(("a", "b"), 2), JobGroup(("c",), 1)]
    second = [JobGroup(("a",), 2), JobGroup(("c", "b"), 1)]
    scheduler = JobScheduler((1, 2, 3), Scripted(first, second))
    scheduler.handle(Arrived(("a", "b", "c")))
    found = scheduler.handle(Profiled("a", load("a")))
    assert found[1:] == [StopJob("b")]
    assert scheduler.machines_of("b") == (1, 2)
    assert scheduler.handle(Rested("b")) == [StartJob("b", (3,))]


def test_a_job_starts_while_others_leave_its_machines() -> None:
    scheduler = JobScheduler((1, 2), Scripted([JobGroup(("a",), 2)], [JobGroup(("b",), 2)]))
    scheduler.handle(Arrived(("a", "b")))
    assert scheduler.handle(Profiled("a", load("a")))[1:] == [StopJob("a"), StartJob("b", (1, 2))]
    assert scheduler.handle(Rested("a")) == []


@pytest.mark.parametrize(("alpha", "has_room"), [(0.0, False), (None, False), (0.5, True)])
def test_a_job_for_which_memory_is_too_short_waits_until_others_have_left(
    alpha: float | None, has_room: bool
) -> None:
    policy = Scripted([JobGroup(("a",), 2)], [JobGroup(("b", "c"), 2)])
    policy.limit = MemoryLimit(10, alpha)
    scheduler = JobScheduler((1, 2), policy)
    small = JobMemory(input_bytes=6, data_blocks=100)
    memory = {"a": JobMemory(input_bytes=12, data_blocks=100), "b": small, "c": small}
    scheduler.handle(Arrived(tuple("abc"), memory))
    found = scheduler.handle(Profiled("a", load("a")))
    starts = [StartJob("b", (1, 2)), StartJob("c", (1, 2))]
    # a takes 6 bytes of each machine, b and c take 3 each; with alpha 0.5 half of that is on disk.
    assert found[1:] == [StopJob("a"), *(starts if has_room else starts[:1])]
    assert scheduler.handle(Rested("a")) == ([] if has_room else starts[1:])


def test_memory_counts_where_jobs_are_and_a_reserve_stays_free() -> None:
    policy = Scripted([JobGroup(("a",), 2)], [JobGroup(("b", "c"), 4)])
    policy.limit = MemoryLimit(100)
    scheduler = JobScheduler((1, 2, 3, 4), policy)
    # On each machine a takes 60 bytes, b 38 and c 37: beside a there is room for c, as 3 are kept free.
    memory = {"a": JobMemory(120.0), "b": JobMemory(152.0), "c": JobMemory(148.0)}
    scheduler.handle(Arrived(("a", "b", "c"), memory))
    assert scheduler.handle(Profiled("a", load("a")))[1:] == [StopJob("a"), StartJob("c", (1, 2, 3, 4))]
    assert scheduler.handle(Rested("a")) == [StartJob("b", (1, 2, 3, 4))]


def test_a_job_that_ends_while_it_leaves_is_over() -> None:
    scheduler = JobScheduler(
        (1, 2), Scripted([JobGroup(("a",), 2)], [JobGroup(("b",), 2)], [JobGroup(("b",), 2)])
    )
    scheduler.handle(Arrived(("a", "b")))
    scheduler.handle(Profiled("a", load("a")))
    assert scheduler.handle(Ended("a")) == []
    assert scheduler.state_of("a") == "over"


def test_what_cannot_happen_is_refused() -> None:
    scheduler = JobScheduler((1,), Scripted())
    scheduler.handle(Arrived(("a",)))
    with pytest.raises(ValueError, match="job a has arrived before"):
        scheduler.handle(Arrived(("a",)))
    with pytest.raises(ValueError, match="job a is waiting, not leaving"):
        scheduler.handle(Rested("a"))


def test_groups_stay_on_their_machines() -> None:
    now = (Sharing(("a", "b"), (2, 4)), Sharing(("c",), (1,)), Sharing(("d",), (3,)))
    wanted = [JobGroup(("d", "x"), 1), JobGroup(("c", "e"), 2), JobGroup(("b",), 1)]
    with_room = [JobGroup(("d", "x"), 1), JobGroup(("a", "b"), 2), JobGroup(("c",), 1)]
    assert place(with_room, (1, 2, 3, 4), now) == (
        Sharing(("d", "x"), (3,)),
        Sharing(("a", "b"), (2, 4)),
        Sharing(("c",), (1,)),
    )
    placed = place(wanted, (1, 2, 3, 4), now)
    assert placed[0] == Sharing(("d", "x"), (3,))
    assert sorted(rank for group in placed for rank in group.machines) == [1, 2, 3, 4]
    with pytest.raises(ValueError, match="5 machines are wanted of 4"):
        place([JobGroup(("a",), 5)], (1, 2, 3, 4), ())


def test_groups_get_the_machines_that_are_free_soonest() -> None:
    now = (Sharing(("a",), (1, 2)), Sharing(("b",), (3, 4)))
    wanted = [JobGroup(("c",), 1), JobGroup(("d",), 2)]
    placed = place(wanted, (1, 2, 3, 4, 5), now, {1: 9.0, 2: 9.0, 3: 4.0, 4: 4.0})
    assert [group.machines for group in placed] == [(5,), (3, 4)]
    own = place([JobGroup(("a", "b"), 3)], (1, 2, 3, 4, 5), now, {1: 9.0, 2: 9.0, 3: 4.0, 4: 4.0})
    assert own == (Sharing(("a", "b"), (1, 2, 3)),), "where its jobs are, nobody else has to leave"


def test_machines_that_are_left_soon_go_to_the_first_groups() -> None:
    scheduler = JobScheduler(
        (1, 2, 3), Scripted([JobGroup((name,), 1) for name in "abc"], [JobGroup(("d",), 1)])
    )
    scheduler.handle(Arrived(("a", "b", "c")))
    for name, seconds in {"a": 5.0, "b": 1.0, "c": 3.0}.items():
        scheduler.policy = Scripted()
        scheduler.handle(Profiled(name, load(name, seconds, 0.0)))
    scheduler.policy = Scripted([JobGroup(("d",), 1)])
    scheduler.handle(Arrived(("d",)))
    assert scheduler.groups == (Sharing(("d",), (2,)),)


def test_a_policy_decides_again_when_a_change_is_due() -> None:
    policy = Scripted([JobGroup(("a",), 1)], None, [JobGroup(("a",), 2)])
    scheduler = JobScheduler((1, 2), policy)
    scheduler.handle(Arrived(("a",)), 1.0)
    assert scheduler.handle(Profiled("a", load("a")), 2.0) == []
    policy.due_s = 10.0
    assert scheduler.handle(Profiled("a", load("a")), 9.9) == []
    assert scheduler.groups == (Sharing(("a",), (1,)),)
    scheduler.handle(Profiled("a", load("a")), 10.0)
    assert scheduler.groups == (Sharing(("a",), (1, 2)),)


def test_idle_machines_are_used_once_waiting_has_cost_enough() -> None:
    policy, job = Harmony(), replace(load("job", 8.0, 0.1), loading_s=5.0)
    policy._settled.add("job")

    def found(now_s: float) -> Sequence[JobGroup] | None:
        groups = (Sharing(("job",), (1, 2)),)
        return policy.regroup(JobsView(4, ("job",), {"job": job}, {"job": JobMemory()}, groups, now_s=now_s))

    assert found(100.0) == [JobGroup(("job",), 2)]
    due_s = policy.due_s
    assert 100.0 < due_s < 200.0
    assert found(100.5) == [JobGroup(("job",), 2)]
    assert policy.due_s == pytest.approx(due_s), "what was lost before is not forgotten"
    assert found(due_s - 0.1) == [JobGroup(("job",), 2)]
    assert found(due_s + 0.001) == [JobGroup(("job",), 4)]
    assert policy.due_s <= due_s + 0.001, "what could change next is looked for at once"


def test_the_shortest_start_of_any_job_is_what_more_machines_do_not_shorten() -> None:
    def due_s(*starts_s: float) -> float:
        policy, job = Harmony(), replace(load("job", 8.0, 0.1), loading_s=12.0)
        policy._settled.add("job")
        groups = (Sharing(("job",), (1, 2)),)
        for start_s in (*starts_s, 12.0):
            loads = {"job": replace(job, loading_s=start_s)}
            policy.regroup(JobsView(4, ("job",), loads, {"job": JobMemory()}, groups))
        return policy.due_s

    assert due_s() == pytest.approx(12 / 6 * due_s(0.0))
    assert due_s(2.0) == pytest.approx(7 / 6 * due_s(0.0))


def test_thousands_of_groups_are_placed_quickly_and_without_overlap() -> None:
    """Linear in the machines; 5,000 sorts of all free ones took 10 s."""
    machines = tuple(range(10_000))
    wanted = [JobGroup((f"j{index}",), 2) for index in range(5000)]
    placed = place(wanted, machines, (), {rank: float(-rank) for rank in machines})
    assert placed[0].machines == (9998, 9999)
    assert sorted(rank for group in placed for rank in group.machines) == list(machines)


def test_a_change_is_followed_by_the_next_one_though_no_job_ends() -> None:
    """Cheap changes pay first; what remains to be gained is counted from then on."""
    policy = Harmony()
    jobs = {name: replace(load(name, 8.0, 0.1), loading_s=5.0) for name in "abc"}
    policy._settled |= set(jobs)
    groups = [Sharing((name,), (rank,)) for rank, name in enumerate("abc")]
    changes, now_s = 0, 0.0
    for _ in range(50):
        view = JobsView(12, tuple(jobs), jobs, {job: JobMemory() for job in jobs}, tuple(groups), now_s=now_s)
        found = policy.regroup(view)
        assert found is not None
        placed = list(place(found, range(12), groups))
        changes, groups = changes + (placed != groups), placed
        if policy.due_s == math.inf:
            break
        now_s = max(now_s + 1.0, policy.due_s)
    assert changes
    assert policy.due_s == math.inf, "all that pays has been done"
    assert sum(len(group.machines) for group in groups) == 12


def test_a_measurement_on_one_machine_keeps_what_is_known_of_the_network() -> None:
    scheduler = JobScheduler((1, 2), Scripted([JobGroup(("a",), 2)]))
    scheduler.handle(Arrived(("a",)))
    scheduler.handle(Profiled("a", replace(load("a", 2.0, 3.0), loading_s=5.0, saving_s=1.0)))
    alone = replace(load("a", 8.0, 0.0, machines=1), loading_s=9.0, saving_s=2.0)
    scheduler.handle(Profiled("a", alone))
    known = scheduler.loads["a"]
    assert (known.compute_s, known.network_s, known.machines) == (4.0, 3.0, 2)
    assert (known.loading_s, known.saving_s) == (5.0, 2.0)


def test_further_measurements_on_one_machine_ask_for_no_decision() -> None:
    scheduler = JobScheduler((1,), Scripted([JobGroup(("a",), 1)], None))
    scheduler.handle(Arrived(("a",)))
    scheduler.handle(Profiled("a", load("a", machines=1)))
    scheduler.policy = Scripted([])  # would let the job wait
    assert scheduler.handle(Profiled("a", load("a", 2.0, machines=1))) == []
    assert scheduler.loads["a"].compute_s == 2.0
    assert scheduler.handle(Profiled("a", load("a", machines=2)))[-1] == StopJob("a")


def test_isolated_jobs_share_no_machine_and_wait_in_order() -> None:
    scheduler = JobScheduler((1, 2, 3, 4), Isolated(MemoryLimit(10)))
    memory = dict.fromkeys("abc", JobMemory(input_bytes=16))
    assert [i for i in scheduler.handle(Arrived(("a", "b", "c"), memory)) if isinstance(i, StartJob)] == [
        StartJob("a", (1, 2)),
        StartJob("b", (3, 4)),
    ]
    assert scheduler.handle(Ended("b"))[-1] == StartJob("c", (3, 4))


def test_an_isolated_job_that_comes_first_leaves_machines_to_those_that_come_later() -> None:
    scheduler = JobScheduler((1, 2, 3, 4), Isolated(num_jobs=2))
    assert scheduler.handle(Arrived(("a",)))[-1] == StartJob("a", (1, 2))
    assert scheduler.handle(Arrived(("b",)))[-1] == StartJob("b", (3, 4))


def test_fixed_groups_lose_their_jobs_one_by_one() -> None:
    scheduler = JobScheduler((1, 2), FixedGroups([JobGroup(("a", "b"), 1), JobGroup(("c",), 1)]))
    scheduler.handle(Arrived(("a", "b", "c")))
    assert not [i for i in scheduler.handle(Ended("a")) if isinstance(i, StartJob | StopJob)]
    scheduler.handle(Ended("b"))
    assert scheduler.groups == (Sharing(("c",), (2,)),)


def test_jobs_of_fixed_groups_wait_until_they_fit() -> None:
    scheduler = JobScheduler((1, 2), FixedGroups([JobGroup(("a", "b", "c"), 2)], MemoryLimit(10)))
    memory = {"a": JobMemory(12), "b": JobMemory(14), "c": JobMemory(8)}
    scheduler.handle(Arrived(("a", "b", "c"), memory))
    assert scheduler.groups == (Sharing(("a", "c"), (1, 2)),)
    assert scheduler.handle(Ended("c")) == []
    assert scheduler.waiting == ("b",)
    assert scheduler.handle(Ended("a"))[-1] == StartJob("b", (1, 2))


@given(st.integers(0, 1000))
def test_random_groups_are_large_enough_for_their_jobs(seed: int) -> None:
    memory = {"small": JobMemory(1), "large": JobMemory(30), "late": JobMemory(40)}
    scheduler = JobScheduler((1, 2, 3, 4), RandomGroups(seed, MemoryLimit(10)))
    scheduler.handle(Arrived(("small", "large"), memory))
    scheduler.handle(Arrived(("late",), memory))
    assert {job for group in scheduler.groups for job in group.jobs} == {"small", "large"}
    scheduler.handle(Ended("large"))
    scheduler.handle(Ended("small"))
    assert scheduler.groups == (Sharing(("late",), (1, 2, 3, 4)),)


def test_jobs_are_measured_on_two_machines_at_least() -> None:
    memory = dict.fromkeys("abcde", JobMemory())
    assert first_groups(list("abcde"), memory, 4) == [JobGroup(("a", "c", "e"), 2), JobGroup(("b", "d"), 2)]
    assert first_groups(list("abcde"), memory, 4, most=2) == [
        JobGroup(("a", "c"), 2),
        JobGroup(("b", "d"), 2),
    ]
    assert first_groups(["a"], memory, 5) == [JobGroup(("a",), 5)]
    assert first_groups(["a", "b"], memory, 1) == [JobGroup(("a", "b"), 1)]


def test_jobs_of_the_beginning_are_measured_two_at_a_time_if_they_do_not_all_fit() -> None:
    def groups(size: float) -> tuple[Sharing, ...]:
        scheduler = JobScheduler((1, 2, 3, 4), Harmony(limit=MemoryLimit(100)))
        scheduler.handle(Arrived(tuple("abcdefg"), dict.fromkeys("abcdefg", JobMemory(size))))
        return scheduler.groups

    assert groups(10.0) == (Sharing(tuple("aceg"), (1, 2)), Sharing(tuple("bdf"), (3, 4)))
    assert groups(60.0) == (Sharing(tuple("ac"), (1, 2)), Sharing(tuple("bd"), (3, 4)))


def test_jobs_are_measured_where_they_fit() -> None:
    memory = {
        "a": JobMemory(30),
        "b": JobMemory(4),
        "c": JobMemory(20),
        "d": JobMemory(6),
        "e": JobMemory(50),
    }
    found = first_groups(list("abcde"), memory, 5, MemoryLimit(10))
    assert found == [JobGroup(("a",), 3), JobGroup(("b", "d"), 2)]


def test_jobs_that_do_not_fit_are_measured_in_place_of_those_that_are() -> None:
    scheduler = JobScheduler((1, 2), Harmony(limit=MemoryLimit(10)))
    memory = {"a": JobMemory(12), "b": JobMemory(14), "c": JobMemory(8), "d": JobMemory(6)}
    scheduler.handle(Arrived(("a", "b", "c", "d"), memory))
    assert scheduler.waiting == ("b", "d")
    scheduler.handle(Profiled("a", load("a", 3.0, 1.0)))
    found = scheduler.handle(Profiled("c", load("c", 1.0, 3.0)))
    assert [each for each in found if isinstance(each, StopJob)] == [StopJob("a"), StopJob("c")]
    assert scheduler.groups == (Sharing(("b", "d"), (1, 2)),)
    assert scheduler.waiting == ("a", "c")
    assert scheduler.handle(Rested("a")) == [StartJob("d", (1, 2))]  # c leaves room for it, but not for b
    assert scheduler.handle(Rested("c")) == [StartJob("b", (1, 2))]


def test_a_group_measures_others_as_soon_as_its_own_jobs_are_measured() -> None:
    """`m` fits beside those that are to be measured, so it goes on; `x` is still being measured elsewhere."""
    memory = {"m": JobMemory(2), "n": JobMemory(14)} | dict.fromkeys("abc", JobMemory(8))
    groups = [JobGroup(("m", "n"), 2), JobGroup(("x",), 2)]
    sized = memory | {"x": JobMemory(18)}
    found = measured_instead(groups, ["a", "b", "c"], set("abcx"), sized, MemoryLimit(10), 2)
    assert found == [JobGroup(("a", "b", "m"), 2), groups[1]]
    assert measured_instead(groups, ["a"], set("amx"), sized, MemoryLimit(10), 2) == groups
    too_large = sized | {"a": JobMemory(21)}
    assert measured_instead(groups, ["a"], set("ax"), too_large, MemoryLimit(10), 2) == groups


def test_jobs_of_the_beginning_are_measured_before_those_that_come_then() -> None:
    """A group holds one job. `b` takes long to be measured; `c` takes the place of `a`, `d` does not."""
    scheduler = JobScheduler((1, 2, 3, 4), Harmony(limit=MemoryLimit(10)))
    memory = dict.fromkeys("abc", JobMemory(18))
    scheduler.handle(Arrived(("a", "b", "c"), memory))
    scheduler.handle(Arrived(("d",), {"d": JobMemory(18)}))
    assert scheduler.waiting == ("c", "d")
    scheduler.handle(Profiled("a", load("a")))
    assert scheduler.waiting == ("a", "d")
    scheduler.handle(Rested("a"))
    scheduler.handle(Profiled("c", load("c")))
    assert scheduler.waiting == ("a", "d")
    scheduler.handle(Profiled("b", load("b")))
    assert scheduler.waiting == ("c", "d")


def test_a_measured_job_goes_on_where_machines_are_free_while_others_are_measured() -> None:
    scheduler = JobScheduler((1, 2, 3, 4), Harmony(limit=MemoryLimit(10)))
    scheduler.handle(Arrived(("a", "b", "c"), dict.fromkeys("abc", JobMemory(18))))
    scheduler.handle(Profiled("a", load("a")))
    scheduler.handle(Rested("a"))
    assert scheduler.waiting == ("a",)
    assert scheduler.handle(Ended("c"))[-1] == StartJob("a", (1, 2))


def test_a_job_that_does_not_fit_later_waits_until_it_does() -> None:
    scheduler = JobScheduler((1, 2), Harmony(limit=MemoryLimit(10)))
    scheduler.handle(Arrived(("a", "c"), {"a": JobMemory(12), "c": JobMemory(8)}))
    scheduler.handle(Profiled("a", load("a", 3.0, 1.0)))
    scheduler.handle(Profiled("c", load("c", 1.0, 3.0)))
    scheduler.handle(Arrived(("b",), {"b": JobMemory(14)}))
    assert scheduler.waiting == ("b",)
    scheduler.handle(Ended("c"))
    assert scheduler.handle(Ended("a"))[-1] == StartJob("b", (1, 2))


def test_jobs_that_are_measured_do_not_keep_other_groups_from_changing() -> None:
    """`new` is being measured beside `slow`; meanwhile a job ends, and one that waits takes its place."""
    policy = Harmony(limit=MemoryLimit(10))
    loads = {each.name: each for each in (load("slow", 3, 1), load("cpu", 3, 1), load("net", 1, 3))}
    policy._settled |= loads.keys()
    groups = (Sharing(("slow", "new"), (1, 2)), Sharing(("cpu",), (3, 4)))
    view = JobsView(
        4,
        (*loads, "new"),
        loads,
        {job: JobMemory() for job in (*loads, "new")},
        groups,
        ended_with=("cpu",),
        ended_on=2,
    )
    found = policy.regroup(view)
    assert found is not None
    assert {frozenset(group.jobs) for group in found} == {
        frozenset(("slow", "new")),
        frozenset(("cpu", "net")),
    }


def test_a_job_that_comes_to_single_machines_is_measured_on_two_of_them() -> None:
    """Otherwise its network would never be known, and nothing would be regrouped until it is over."""
    scheduler = JobScheduler((1, 2), Harmony())
    scheduler.handle(Arrived(("cpu", "net")))
    scheduler.handle(Profiled("cpu", load("cpu", 3.0, 0.1)))
    scheduler.handle(Profiled("net", load("net", 1.0, 5.0)))
    assert {len(group.machines) for group in scheduler.groups} == {1}
    scheduler.handle(Arrived(("late",)))
    assert scheduler.groups == (Sharing(("cpu", "net", "late"), (1, 2)),)


def test_a_job_that_comes_to_one_idle_machine_gets_another_one_to_be_measured() -> None:
    """One of two machines is idle, but a job that waits cannot be measured there."""
    memory = {"runs": JobMemory(), "waits": JobMemory()}
    runs = Sharing(("runs",), (1,))
    view = JobsView(2, ("runs", "waits"), {"runs": load("runs", 3.0, 0.1)}, memory, (runs,))
    assert Harmony().regroup(view) == [JobGroup(("runs", "waits"), 2)]


def test_harmony_groups_complements_once_all_are_measured() -> None:
    """Each job needs half of the machines' memory, so four of eight machines hold two."""
    scheduler = JobScheduler(tuple(range(1, 9)), Harmony(limit=MemoryLimit(20)))
    names = ("cpu1", "cpu2", "net1", "net2")
    scheduler.handle(Arrived(names, dict.fromkeys(names, JobMemory(40))))
    loads = {"cpu1": (3.0, 1.0), "cpu2": (3.1, 1.1), "net1": (1.0, 3.0), "net2": (1.1, 3.1)}
    for name, (compute_s, network_s) in loads.items():
        found = scheduler.handle(Profiled(name, load(name, compute_s, network_s, 4)))
        assert bool(found) == (name == "net2")
    for group in scheduler.groups:
        assert {name[:3] for name in group.jobs} == {"cpu", "net"}


def test_jobs_that_fit_one_machine_are_not_spread_for_the_sake_of_traffic() -> None:
    scheduler = JobScheduler((1, 2), Harmony())
    scheduler.handle(Arrived(("cpu", "net")))
    scheduler.handle(Profiled("cpu", load("cpu", 3.0, 0.1)))
    scheduler.handle(Profiled("net", load("net", 1.0, 5.0)))
    assert {len(group.machines) for group in scheduler.groups if "net" in group.jobs} == {1}


class World:
    """Performs instructions, and makes events at random.

    Every job fits on all machines, and most do not fit on a few.
    """

    def __init__(self, scheduler: JobScheduler, rng: random.Random, limit: MemoryLimit) -> None:
        self.scheduler, self.rng, self.limit = scheduler, rng, limit
        self.expected = [f"j{i}" for i in range(rng.randint(1, 7))]
        most = (limit.limit_bytes or 0) * len(scheduler.machines)
        self.memory = {name: JobMemory(rng.uniform(0, most)) for name in self.expected}
        self.running: dict[str, tuple[int, ...]] = {}
        self.leaving: set[str] = set()
        self.over: set[str] = set()
        self.arrived: set[str] = set()
        self.now_s = 0.0

    def perform(self, instructions: list[Instruction]) -> None:
        for instruction in instructions:
            match instruction:
                case StartJob(name, machines):
                    assert name not in self.running
                    assert name in self.arrived - self.over
                    assert machines
                    self.running[name] = machines
                case StopJob(name):
                    assert name in self.running
                    assert name not in self.leaving
                    self.leaving.add(name)
                case Grouped(groups, waiting):
                    machines_ = [rank for group in groups for rank in group.machines]
                    assert len(machines_) == len(set(machines_))
                    placed = [job for group in groups for job in group.jobs]
                    assert sorted([*placed, *waiting]) == sorted(self.arrived - self.over)

    def step(self) -> None:
        choices: list[Event] = []
        if self.expected:
            choices.append(Arrived((self.expected[0],), self.memory))
        for name, machines in self.running.items():
            rng = self.rng
            choices.append(
                Profiled(name, load(name, rng.uniform(0.1, 5), rng.uniform(0.0, 5), len(machines)))
            )
            choices.append(Ended(name))
            if name in self.leaving:
                choices.append(Rested(name))
        event = self.rng.choice(choices)
        match event:
            case Arrived(names):
                self.expected.pop(0)
                self.arrived |= set(names)
            case Rested(name) | Ended(name):
                del self.running[name]
                self.leaving.discard(name)
                self.over |= {name} if isinstance(event, Ended) else set()
        self.now_s += self.rng.choice([0.0, 0.1, 1.0, 100.0])
        self.perform(self.scheduler.handle(event, self.now_s))
        for rank in self.scheduler.machines:
            here = [(self.memory[name], at) for name, at in self.running.items() if rank in at]
            taken = sum(memory.on(len(at)) for memory, at in here)
            assert taken <= (self.limit.limit_bytes or taken) * (1 + 1e-9)


POLICIES = {
    "harmony": lambda limit, seed: Harmony(limit=limit),
    "isolated": lambda limit, seed: Isolated(limit),
    "random": lambda limit, seed: RandomGroups(seed, limit),
}


@pytest.mark.parametrize("policy", POLICIES)
@given(st.integers(0, 2**32), st.integers(1, 9), st.sampled_from([None, 100.0]))
def test_every_job_comes_to_its_end(policy, seed: int, num_machines: int, limit_bytes: float | None) -> None:
    """Whatever happens in whatever order, something can always happen until all jobs are over, and no machine
    ever holds more than it can."""
    limit = MemoryLimit(limit_bytes)
    scheduler = JobScheduler(tuple(range(1, num_machines + 1)), POLICIES[policy](limit, seed))
    world = World(scheduler, random.Random(seed), limit)
    for _ in range(400):
        if not world.expected and world.over == world.arrived:
            return
        assert world.expected or world.running, "jobs wait, but none runs"
        world.step()
    while not (not world.expected and world.over == world.arrived):  # let them end
        name = next(iter(world.running), None)
        if name is None:
            world.step()
            continue
        del world.running[name]
        world.leaving.discard(name)
        world.over.add(name)
        world.perform(world.scheduler.handle(Ended(name), world.now_s))


def test_a_similar_job_is_put_where_one_has_ended() -> None:
    policy = Harmony()
    loads = {
        each.name: each for each in (load("partner", 1, 4), load("other", 1, 0.2), load("similar", 4.1, 0.95))
    }
    policy._settled |= loads.keys()
    view = JobsView(
        2,
        tuple(loads),
        loads,
        {job: JobMemory() for job in loads},
        (Sharing(("partner",), (1, 2)),),
        ended_with=("partner",),
        ended_on=2,
        left=load("ended", 4, 1),
    )
    found = policy.regroup(view)
    assert found is not None
    assert {"partner", "similar"} <= set(found[0].jobs)


def test_jobs_are_measured_together_up_to_a_number_of_them() -> None:
    memory = {job: JobMemory() for job in ("known", "small", *"abcde")}
    groups = [JobGroup(("known",), 4), JobGroup(("small",), 2)]
    found = joined(groups, list("abcde"), set("abcde"), memory, MemoryLimit(), 2)
    assert found == [JobGroup(("known", "e"), 4), JobGroup(("small", *"abcd"), 2)]
