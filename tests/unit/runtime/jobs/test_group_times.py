"""Predicted and measured iterations of groups."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import cast

import pytest

from hpcbal.paramserver.coscheduling.profiling import (
    LEAST_ITERATIONS,
    WINDOW,
    IterationMeter,
    note_disturbance,
)
from hpcbal.paramserver.coscheduling.scheduler import Sharing
from hpcbal.paramserver.master.messages import TurnDone
from hpcbal.policies.grouping.groups import JobLoad
from hpcbal.runtime.jobs.groups import FormedGroups
from hpcbal.runtime.jobs.job import Start


@dataclass
class Job:
    """A start of a job with one worker that takes turns."""

    number: int
    ranks: tuple[int, ...] = (1, 2)
    is_iterating: bool = True
    meter: IterationMeter = field(default_factory=lambda: IterationMeter((1,), warm_up=0))
    now_s: float = 0.0
    step: int = -1

    def take_turns(self, count: int, period_s: float) -> None:
        for _ in range(count):
            self.step += 1
            self.now_s += period_s
            self.meter.note(1, TurnDone(self.step, (), 1, 0.1, 0.1, 0.1, 10), self.now_s)


def running(**jobs: Job) -> Mapping[str, Start]:
    return cast(Mapping[str, Start], jobs)


BOTH = Sharing(("a", "b"), (1, 2))
LOADS = {name: JobLoad(name, 2.0, 1.0, 2) for name in "ab"}


def test_a_group_is_predicted_once_all_its_jobs_are_measured() -> None:
    times = FormedGroups()
    times.become([BOTH], {"a": LOADS["a"]}, {})
    assert times.predicted_s(BOTH) is None
    times.become([BOTH], LOADS, {})
    assert times.predicted_s(BOTH) == 4.0


def test_what_was_predicted_when_a_group_was_formed_remains() -> None:
    times = FormedGroups()
    times.become([BOTH], LOADS, {})
    slower = {name: JobLoad(name, 5.0, 1.0, 2) for name in "ab"}
    times.become([BOTH, Sharing(("c",), (3,))], slower, {})
    assert times.predicted_s(BOTH) == 4.0
    times.become([BOTH], {}, {})
    assert times.predicted_s(BOTH) == 4.0
    times.become([], {}, {})
    times.become([BOTH], slower, {})
    assert times.predicted_s(BOTH) == 10.0


def test_only_iterations_of_the_group_count() -> None:
    times, a, b = FormedGroups(), Job(1), Job(2)
    a.take_turns(30, 1.0)  # alone, before the group is formed
    times.become([BOTH], LOADS, running(a=a, b=b))
    b.take_turns(WINDOW + 1, 2.0)
    a.take_turns(LEAST_ITERATIONS - 1, 3.0)
    assert times.measured_s(BOTH, running(a=a, b=b)) is None
    a.meter.disturb(a.now_s + 1.0)  # by an objective of b
    a.take_turns(1, 9.0)
    assert times.measured_s(BOTH, running(a=a, b=b)) is None
    a.take_turns(1, 3.0)
    times.become([BOTH, Sharing(("c",), (3,))], LOADS, running(a=a, b=b))  # it goes on
    assert times.measured_s(BOTH, running(a=a, b=b)) == pytest.approx(3.0)
    assert times.measured_s(BOTH, running(a=a)) is None
    again = Job(3)  # b has started anew
    assert times.measured_s(BOTH, running(a=a, b=again)) is None
    again.take_turns(WINDOW + 1, 4.0)
    assert times.measured_s(BOTH, running(a=a, b=again)) == pytest.approx(4.0)
    again.ranks = (1, 2, 3)  # and has not come to the machines of the group yet
    assert times.measured_s(BOTH, running(a=a, b=again)) is None


@pytest.mark.parametrize(("heard_of", "disturbed"), [("near", "near"), ("busy", "near"), ("far", "")])
def test_what_a_job_does_beside_iterations_disturbs_those_on_its_machines(
    heard_of: str, disturbed: str
) -> None:
    jobs = {"near": Job(1), "far": Job(2, (3,)), "busy": Job(3, (2, 4), is_iterating=False)}
    for job in jobs.values():
        job.take_turns(2, 1.0)
    everyone = running(**jobs)
    note_disturbance(everyone[heard_of], everyone.values(), 2.5)
    for name in ("near", "far"):
        jobs[name].take_turns(1, 1.0)
        assert jobs[name].meter.num_periods == (1 if name == disturbed else 2)
