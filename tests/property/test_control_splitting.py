"""Whatever happens to a group, its ranks follow the same shares, and no sample is lost."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from hpcbal.control.splitting.machine import (
    MAX_EVENTS,
    Announced,
    AskPolicy,
    Decided,
    PolicyFailed,
    SplitAction,
    SplitEvent,
    SplitRules,
    Splitting,
    StepMeasured,
    replay,
)
from hpcbal.policies.batching import BATCHING, BatchTask, Cadence, Decision, Observation
from hpcbal.policies.batching.min_max import apportion
from hpcbal.policies.batching.task import BatchState
from hpcbal.simulator.step_pace import VirtualGroup


@st.composite
def rounds(draw: st.DrawFn) -> tuple[BatchTask, SplitRules, list[Any]]:
    """A group, its rules, and the events of each step: (samples, answer or None, whether it is late)."""
    num_ranks = draw(st.integers(1, 5))
    num_samples = draw(st.integers(num_ranks, 200))
    task = BatchTask.uniform(num_samples, num_ranks)
    rules = SplitRules(
        draw(st.sampled_from([Cadence.BACKGROUND, Cadence.UNTIL_SETTLED, Cadence.EVERY_STEP])),
        draw(st.booleans()),
        draw(st.integers(0, 3)),
        draw(st.integers(1, 4)),
    )
    answer = st.one_of(
        st.just("fails"),
        st.just("loses a sample"),
        st.lists(st.floats(0.0, 1.0), min_size=num_ranks, max_size=num_ranks),
    )
    step = st.tuples(
        st.integers(1, num_samples),
        answer,
        st.booleans(),
        st.none() | st.integers(0, num_ranks - 1),
        st.integers(0, 3).map(lambda number: number == 3),
    )
    return task, rules, draw(st.lists(step, max_size=30))


@dataclass
class Group:
    """The machines of a master and of another rank, and the actions of the master's."""

    rules: SplitRules
    start: BatchState
    actions: list[SplitAction] = field(default_factory=list)
    late: SplitEvent | None = None

    def __post_init__(self) -> None:
        self.master, self.other = (Splitting(self.rules, self.start) for _ in range(2))

    def feed(self, event: SplitEvent) -> list[SplitAction]:
        found = self.master.handle(event)
        self.master.check_invariants()
        self.actions += found
        return found

    def follow(self) -> None:
        told = Announced(self.master.announcement)
        self.feed(told)
        self.other.handle(told)
        self.other.check_invariants()


def answer_to(ask: AskPolicy, answer: Any, remove: int | None) -> SplitEvent:
    task = ask.state.task
    if answer == "fails":
        return PolicyFailed("it raised an error")
    sizes = (
        ask.state.batch_sizes[:-1]
        if answer == "loses a sample"
        else apportion(task.num_samples, answer, task.minima, task.maxima)
    )
    return Decided(Decision(replace(ask.state, batch_sizes=sizes), remove))


def take(
    group: Group, shares: tuple[int, ...], answer: Any, is_late: bool, remove: int | None, is_broken: bool
) -> None:
    """One training step, in the order of the runtime; the reports of a broken step cannot be used."""
    if group.late is not None and not (is_late and not group.master.at_once):
        group.feed(group.late)
        group.late = None
    measured = StepMeasured(shares, tuple(Observation(n, 0.1 * n) for n in shares))
    at_once = group.master.at_once
    if not at_once:
        group.follow()
    for action in group.feed(PolicyFailed("not a number") if is_broken else measured):
        if isinstance(action, AskPolicy):
            event = answer_to(action, answer, remove)
            if at_once:
                group.feed(event)
            else:
                group.late = event
    if at_once:
        group.follow()


@given(rounds())
@settings(deadline=None)
def test_all_ranks_follow_one_split_that_keeps_every_sample(
    drawn: tuple[BatchTask, SplitRules, list[Any]],
) -> None:
    task, rules, steps = drawn
    even = BatchState(task, apportion(task.num_samples, [1.0] * task.num_workers, task.minima, task.maxima))
    group = Group(rules, even)
    asked_after_failure = False
    for num_samples, answer, is_late, remove, is_broken in steps:
        shares = group.master.split(num_samples)
        assert shares == group.other.split(num_samples)
        assert sum(shares) == num_samples
        assert group.master.at_once == group.other.at_once
        gave_up, before = group.master.gave_up, len(group.actions)
        take(group, shares, answer, is_late, remove, is_broken)
        asked_after_failure |= gave_up and any(isinstance(a, AskPolicy) for a in group.actions[before:])
    assert not asked_after_failure
    assert group.other.num_decisions == 0
    assert group.master.num_steps == sum(not is_broken for *_, is_broken in steps)


@given(rounds())
@settings(deadline=None)
def test_the_same_trace_gives_the_same_actions_and_the_log_the_same_state(
    drawn: tuple[BatchTask, SplitRules, list[Any]],
) -> None:
    task, rules, steps = drawn
    even = BatchState(task, apportion(task.num_samples, [1.0] * task.num_workers, task.minima, task.maxima))
    first, second = Group(rules, even), Group(rules, even)
    for group in (first, second):
        for num_samples, answer, is_late, remove, is_broken in steps:
            take(group, group.master.split(num_samples), answer, is_late, remove, is_broken)
    assert first.actions == second.actions
    events = first.master.events
    assert len(events) < MAX_EVENTS
    assert vars(replay(rules, even, events)) == vars(first.master)


@given(
    st.sampled_from(["fitted", "lb-bsp-gpu", "lb-bsp-cpu"]),
    st.lists(st.floats(0.001, 0.1), min_size=2, max_size=5),
    st.integers(0, 40),
)
@settings(deadline=None, max_examples=15)
def test_every_step_of_a_virtual_pass_is_split_completely(
    policy: str, sample_s: Sequence[float], last: int
) -> None:
    chosen: Any = BATCHING[policy]
    group = VirtualGroup(chosen, BatchTask.uniform(64, len(sample_s)))
    sizes = [(64, True)] * 25 + [(last, True)] * (last > 0) + [(50, False)]
    for _ in range(2):
        steps = group.steps(
            sizes, lambda shares, training: [n * s for n, s in zip(shares, sample_s, strict=True)]
        )
        assert [(sum(step.shares), step.training) for step in steps] == sizes
        group.begin_round()
    assert group.machine is not None
    group.machine.check_invariants()
