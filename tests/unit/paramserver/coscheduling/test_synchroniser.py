"""The network of a group belongs to one job at a time, on all its machines at once."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hpcbal.paramserver.coscheduling.synchroniser import KEEP_S, Grant, NetworkSynchroniser


def synchroniser(*jobs: str, machines: range = range(1, 3)) -> NetworkSynchroniser:
    found = NetworkSynchroniser()
    for job in jobs:
        found.add(job, machines, machines)
    return found


def used(network: NetworkSynchroniser, job: str, worker: int) -> list[Grant]:
    return network.used(job, worker, 0.0, goes_on=False)


def test_a_job_begins_when_all_its_workers_are_there() -> None:
    network = synchroniser("a")
    assert network.ask("a", 2, 0) == []
    assert network.ask("a", 1, 0) == [("a", (1, 2))]


def test_the_next_job_begins_when_the_last_worker_is_through() -> None:
    network = synchroniser("a", "b")
    network.ask("b", 1, 7)
    network.ask("a", 1, 0)
    network.ask("a", 2, 0)
    assert network.ask("b", 2, 7) == []
    assert used(network, "a", 1) == []
    assert used(network, "a", 2) == [("b", (1, 2))]


def test_a_worker_without_samples_is_not_waited_for() -> None:
    network = synchroniser("a")
    assert network.ask("a", 2, 0) == []
    assert network.idle("a", 1, 0) == [("a", (2,))]
    assert used(network, "a", 2) == []
    assert network.ask("a", 2, 0) == [("a", (2,))], "its push"
    used(network, "a", 2)
    assert network.ask("a", 2, 1) == [], "in the next step the other one may have samples"
    assert network.ask("a", 1, 1) == [("a", (1, 2))]


def test_jobs_on_other_machines_do_not_wait() -> None:
    network = NetworkSynchroniser()
    network.add("a", (1, 2), (1, 2))
    network.add("b", (3,), (3,))
    network.add("c", (2, 3), (2, 3))
    network.ask("a", 1, 0)
    assert network.ask("a", 2, 0) == [("a", (1, 2))]
    network.ask("c", 2, 0)
    assert network.ask("c", 3, 0) == [], "it is on the way to another group"
    assert network.ask("b", 3, 0) == [], "whoever was ready first comes first"
    assert used(network, "a", 1) + used(network, "a", 2) == [("c", (2, 3))]
    assert used(network, "c", 2) + used(network, "c", 3) == [("b", (3,))]


def test_nobody_waits_for_a_worker_that_has_failed() -> None:
    network = synchroniser("a", "b", machines=range(1, 4))
    for worker in (1, 2, 3):
        network.ask("b", worker, 0)
    network.ask("a", 1, 0)
    network.ask("a", 2, 0)
    assert network.let_go("a") == [("a", (1, 2))]
    assert network.ask("a", 1, 0) == [("a", (1,))]
    assert network.let_go("a") == []
    assert network.remove("a") == []


def test_a_job_that_ends_leaves_the_network_to_the_next() -> None:
    network = synchroniser("a", "b")
    for job in ("a", "b"):
        for worker in (1, 2):
            network.ask(job, worker, 0)
    assert network.remove("a") == [("b", (1, 2))]
    assert used(network, "a", 1) == []
    assert network.ask("a", 1, 0) == [], "a message that was on its way"


def pushing(goes_on: bool) -> tuple[NetworkSynchroniser, list[Grant]]:
    """Job a is through with its push at time 0, while b waits with its own pull."""
    network = synchroniser("a", "b", machines=range(1, 2))
    network.ask("a", 1, 0)
    network.used("a", 1, 0.0, goes_on=True)
    network.ask("a", 1, 0)
    assert network.ask("b", 1, 0) == []
    return network, network.used("a", 1, 0.0, goes_on=goes_on)


def test_a_job_that_has_pushed_keeps_the_network_for_its_next_pull() -> None:
    network, begun = pushing(goes_on=True)
    assert begun == []
    assert network.release(0.9 * KEEP_S) == []
    assert network.ask("a", 1, 1) == [("a", (1,))]
    assert network.used("a", 1, 0.1, goes_on=True) == [("b", (1,))], "a computes; b was there before its push"


def test_a_job_that_does_not_go_on_keeps_nothing() -> None:
    _, begun = pushing(goes_on=False)
    assert begun == [("b", (1,))]


def test_a_job_that_does_not_come_in_time_waits_for_the_others() -> None:
    network, _ = pushing(goes_on=True)
    assert network.release(KEEP_S) == [("b", (1,))]
    assert network.ask("a", 1, 1) == []
    assert network.used("b", 1, 0.1, goes_on=True) == [("a", (1,))]


@pytest.mark.parametrize("leave", [NetworkSynchroniser.remove, NetworkSynchroniser.let_go])
def test_a_job_that_ends_or_fails_keeps_nothing(leave: Callable[[NetworkSynchroniser, str], object]) -> None:
    network, _ = pushing(goes_on=True)
    assert leave(network, "a") == [("b", (1,))]


@given(st.integers(0, 2**32))
def test_every_job_goes_on_and_none_shares_a_machine(seed: int) -> None:
    """Workers take steps of a pull and a push at random speeds; some have no samples in some steps."""
    rng = random.Random(seed)
    network = NetworkSynchroniser()
    machines = {f"j{i}": rng.sample(range(1, 6), rng.randint(1, 4)) for i in range(rng.randint(1, 5))}
    for job, ranks in machines.items():
        network.add(job, ranks, ranks)
    steps = 3
    idle = {
        (job, rank, step)
        for job, ranks in machines.items()
        for rank in ranks
        for step in range(steps)
        if rng.random() < 0.3
    }
    done = dict.fromkeys(machines, 0)
    phase = {(job, rank): 0 for job, ranks in machines.items() for rank in ranks}  # 0 to 4; 4: at the barrier
    using: dict[str, set[int]] = {job: set() for job in machines}

    def take(grants: list[Grant]) -> None:
        for job, ranks in grants:
            for rank in ranks:
                assert phase[job, rank] in (1, 3)
                phase[job, rank] += 0.5
                using[job].add(rank)
            for other, others in using.items():
                assert other == job or not others or not set(machines[other]) & set(machines[job])

    now_s = 0.0
    for _ in range(5000):
        now_s += rng.choice([0.0, KEEP_S / 3])
        take(network.release(now_s))
        moves = [
            (job, rank) for (job, rank), at in phase.items() if done[job] < steps and at in (0, 1.5, 2, 3.5)
        ]
        if not moves and done == dict.fromkeys(machines, steps):
            break
        if not moves:  # all wait for one that has been said to go on
            continue
        job, rank = rng.choice(moves)
        at, step = phase[job, rank], done[job]
        if at == 0 and (job, rank, step) in idle:
            phase[job, rank] = 4
            take(network.idle(job, rank, step))
        elif at in (0, 2):
            phase[job, rank] = at + 1
            take(network.ask(job, rank, step))
        else:
            phase[job, rank] = 2 if at == 1.5 else 4
            using[job].discard(rank)
            goes_on = rng.random() < 0.7  # it may as well be wrong
            take(network.used(job, rank, now_s, goes_on=goes_on))
        if all(phase[job, each] == 4 for each in machines[job]):
            done[job] += 1
            for each in machines[job]:
                phase[job, each] = 0
    assert done == dict.fromkeys(machines, steps)
