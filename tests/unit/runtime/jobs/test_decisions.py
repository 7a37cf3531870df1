"""The scheduler decides in a thread of its own, one event after the other."""

from __future__ import annotations

import math
import threading
from collections.abc import Sequence

import pytest

from hpcbal.paramserver.coscheduling.scheduler import Arrived, JobScheduler, JobsView, Profiled, StartJob
from hpcbal.policies.grouping.groups import JobGroup, JobLoad
from hpcbal.policies.grouping.memory import MemoryLimit
from hpcbal.runtime.jobs.background import Decisions, SchedulingDecision


class Slow:
    """Puts every job on the first machine, when it is let go on."""

    due_s = math.inf
    limit = MemoryLimit()

    def __init__(self) -> None:
        self.go_on = threading.Event()

    def regroup(self, view: JobsView) -> Sequence[JobGroup]:
        assert self.go_on.wait(60.0)
        return [JobGroup(view.jobs, 1)]


class Broken:
    due_s = math.inf
    limit = MemoryLimit()

    def regroup(self, view: JobsView) -> Sequence[JobGroup]:
        raise ZeroDivisionError("no machines")


def wait_for(decisions: Decisions) -> SchedulingDecision:
    pause = threading.Event()
    for _ in range(60_000):
        if (found := decisions.take()) is not None:
            return found
        pause.wait(1e-3)
    raise AssertionError("no decision came in a minute")


def test_nobody_waits_for_a_decision_and_all_come_in_order() -> None:
    policy = Slow()
    decisions = Decisions(JobScheduler((1,), policy))
    decisions.ask(Arrived(("a",)))
    decisions.ask(Profiled("a", JobLoad("a", 1.0, 1.0, 1)))
    decisions.ask(Arrived(("b",)))
    assert decisions.take() is None
    policy.go_on.set()
    first, second, third = (wait_for(decisions) for _ in range(3))
    assert first.instructions[-1] == StartJob("a", (1,))
    assert not first.loads
    assert second.loads == {}
    assert third.instructions[-1] == StartJob("b", (1,))
    assert set(third.loads) == {"a"}
    assert third.seconds >= 0
    assert decisions.take() is None
    decisions.close()


def test_what_a_policy_raises_comes_to_who_takes_its_decision() -> None:
    decisions = Decisions(JobScheduler((1,), Broken()))
    decisions.ask(Arrived(("a",)))
    with pytest.raises(ZeroDivisionError, match="no machines"):
        wait_for(decisions)
    decisions.close()


def test_events_that_wait_are_forgotten_at_the_end() -> None:
    policy = Slow()
    scheduler = JobScheduler((1,), policy)
    decisions = Decisions(scheduler)
    decisions.ask(Arrived(("a",)))
    decisions.ask(Arrived(("b",)))
    decisions.close()
    policy.go_on.set()
    for thread in threading.enumerate():
        if thread.name.startswith("decide"):
            thread.join(60.0)
    assert decisions.take() is None
    assert scheduler.state_of("a") == "running"
    with pytest.raises(KeyError, match="b"):
        scheduler.state_of("b")
