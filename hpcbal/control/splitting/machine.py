"""The splitting machine: events in, actions out, no IO, no clock, no threads."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from hpcbal.errors import HpcbalError, PolicyError
from hpcbal.policies.batching import (
    BatchingPolicy,
    BatchTask,
    Cadence,
    Decision,
    Observation,
    WorkerLimits,
    scale_shares,
)
from hpcbal.policies.batching.min_max import apportion


@dataclass(frozen=True, slots=True)
class Announcement:
    """The master's announcement to all ranks of its group; all follow it from the same step on.

    Attributes:
        batch_sizes: samples of each rank in a full step.
        at_once: whether each step now waits for the decision on the step before. Otherwise a batch may be
            planned and fetched while the step before it runs.
        weights: the part of a step's work that each rank gets where samples differ in size; only their
            proportions count. Empty: `batch_sizes`.
    """

    batch_sizes: tuple[int, ...]
    at_once: bool
    weights: tuple[float, ...] = ()

    def __post_init__(self) -> None:
        if not self.weights:
            object.__setattr__(self, "weights", tuple(map(float, self.batch_sizes)))


# ---- events: what has happened -------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class SplitEvent:
    """Base of all events."""


@dataclass(frozen=True, slots=True)
class StepMeasured(SplitEvent):
    """On the master: all ranks have reported on a training step.

    Attributes:
        shares: samples of each rank in that step, as planned.
        observations: one per rank, in rank order.
    """

    shares: tuple[int, ...]
    observations: tuple[Observation, ...]


@dataclass(frozen=True, slots=True)
class Decided(SplitEvent):
    """On the master: the policy has answered the last `AskPolicy`."""

    decision: Decision[Any]


@dataclass(frozen=True, slots=True)
class PolicyFailed(SplitEvent):
    """On the master: the policy raised an error instead of answering, or cannot be shown a step's reports.

    `problem` goes to the log.
    """

    problem: str


@dataclass(frozen=True, slots=True)
class Announced(SplitEvent):
    """On every rank: the master's announcement, identical on all ranks after the same step."""

    announcement: Announcement


# ---- actions: what to do -------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class SplitAction:
    """Base of all actions."""


@dataclass(frozen=True, slots=True)
class AskPolicy(SplitAction):
    """Ask the policy, and report back with `Decided` or `PolicyFailed`.

    Attributes:
        state, observations: arguments of `BatchingPolicy.decide`.
    """

    state: Any
    observations: tuple[Observation, ...]


@dataclass(frozen=True, slots=True)
class Offer(SplitAction):
    """Log that the group would be faster without this rank; once for each rank."""

    rank: int


@dataclass(frozen=True, slots=True)
class GiveUp(SplitAction):
    """Log that balancing ends: the policy is no longer asked, and the shares stay as they are."""

    problem: str


WARM_UP_STEPS = 1
"""Training steps at the start of a round in which models are traced and memory is allocated. Their times
say nothing about speed."""

SETTLED_AFTER = 3
"""Decisions in a row that must move few samples until a group with `Cadence.UNTIL_SETTLED` plans ahead."""

LARGE_MOVE = 0.05
"""Share of a step's samples. If a decision moves more, the policy is still learning. With noise of 3 % in the
times, `fitted` moves 1 or 2 % once it knows the curves."""


@dataclass(frozen=True, slots=True)
class SplitRules:
    """The properties of a policy that a machine needs, and the machine's constants.

    Attributes:
        cadence, learns_from_any_split: declared by the policy.
        warm_up_steps: first training steps of a round that the policy does not see, >= 0.
        settled_after, large_move: see `SETTLED_AFTER` and `LARGE_MOVE`.

    Raises:
        PolicyError: the policy never decides, so it needs no machine.
    """

    cadence: Cadence
    learns_from_any_split: bool = False
    warm_up_steps: int = WARM_UP_STEPS
    settled_after: int = SETTLED_AFTER
    large_move: float = LARGE_MOVE

    def __post_init__(self) -> None:
        if self.cadence is Cadence.NEVER:
            raise PolicyError("a policy that never decides needs no splitting machine; use its first split")

    @classmethod
    def of(cls, policy: BatchingPolicy[Any]) -> SplitRules:
        """The rules for a policy."""
        return cls(policy.cadence, policy.learns_from_any_split)


def step_task(num_samples: int, num_ranks: int, max_samples: int | None = None) -> BatchTask:
    """The task of a full step; every rank gets a sample if there are enough, so all ranks stay measured.

    Args:
        max_samples: most samples of one rank; an even share is always allowed. None: no limit.
    """
    if max_samples is not None:
        max_samples = max(max_samples, -(-num_samples // num_ranks))
    limits = WorkerLimits(min_samples=int(num_samples >= num_ranks), max_samples=max_samples)
    return BatchTask.uniform(num_samples, num_ranks, limits)


def scaled_to_step(num_samples: int, sizes: Sequence[int]) -> tuple[int, ...]:
    """`sizes` scaled to a step of `num_samples`; a step of validation may be larger than a full step."""
    total = sum(sizes)
    if num_samples == total:
        return tuple(sizes)
    return scale_shares(num_samples, sizes) if num_samples < total else apportion(num_samples, sizes)


MAX_EVENTS = 200
NUM_SHOWN = 10


class SplitError(HpcbalError):
    """The splitting machine got an event that cannot happen now, or found its state inconsistent.

    Attributes:
        problem: what was given, and what is allowed.
        events: the last events, oldest first.
    """

    def __init__(self, problem: str, events: tuple[SplitEvent, ...] = ()) -> None:
        self.problem = problem
        self.events = events
        super().__init__(problem, events)

    def __str__(self) -> str:
        return "\n".join([self.problem, *(f"  {event!r:.200}" for event in self.events[-NUM_SHOWN:])])


class Splitting:
    """How one trainer group splits its steps in one round; every rank has one.

    The master's machine decides when its policy is asked and what to announce. The machines of all ranks, the
    master's included, follow the announcements. The caller passes events to `handle` and performs the
    actions: the runtime with threads and collectives, the simulator in virtual time.

    At most one decision is pending. The policy sees a step unless it is one of the first of the round, a
    decision is pending, or the step ran under other shares than the policy's last decision and the policy
    cannot use such a step. If a policy raises an error or returns a split that loses samples, it is not asked
    again.

    Args:
        rules: of the policy.
        state: of the policy, from `BatchingPolicy.start` or from the group's last round.
        num_quiet: of the group's last round, see below; 0: the group is new.

    Attributes:
        rules: as given.
        state: of the policy after its last decision; changes on the master only.
        in_force: the announcement that the ranks follow.
        remove: rank without which the group would be faster, by the policy's last decision; None: none.
        gave_up: whether the policy is no longer asked.
        is_pending: whether a decision is pending.
        num_steps, num_decisions, num_changes: training steps measured, decisions, and changes of the shares
            in force.
        num_quiet: number of decisions in a row that moved few samples.
    """

    def __init__(self, rules: SplitRules, state: Any, num_quiet: int = 0) -> None:
        self.rules = rules
        self.state = state
        self.remove: int | None = None
        self.gave_up = False
        self.is_pending = False
        self.num_steps = self.num_decisions = self.num_changes = 0
        self.num_quiet = num_quiet
        self._offered: set[int] = set()
        self._events: deque[SplitEvent] = deque(maxlen=MAX_EVENTS)
        self.in_force = self.announcement

    def handle(self, event: SplitEvent) -> list[SplitAction]:
        """Process one event; the only way to change the state.

        Raises:
            SplitError: the event cannot happen now; only the log has changed.
        """
        self._events.append(event)
        handler = _HANDLERS.get(type(event))
        if handler is None:
            known = ", ".join(sorted(kind.__name__ for kind in _HANDLERS))
            raise self._error(f"got an event of type {type(event).__name__}, allowed: {known}")
        return handler(self, event)

    @property
    def announcement(self) -> Announcement:
        """The master's announcement to all ranks for their next meeting."""
        return Announcement(self.state.batch_sizes, self._wants_at_once(), self.state.weights)

    @property
    def at_once(self) -> bool:
        """Whether the next step can be planned only after this one has ended and its decision is made."""
        return self.in_force.at_once

    @property
    def events(self) -> tuple[SplitEvent, ...]:
        """The last events; if the round was short, `replay` of them leads to the same state."""
        return tuple(self._events)

    def split(self, num_samples: int) -> tuple[int, ...]:
        """Shares of a step that is planned now; steps of other sizes keep the proportions of a full step."""
        return scaled_to_step(num_samples, self.in_force.batch_sizes)

    def check_invariants(self) -> None:
        """Raises: SplitError: the state contradicts itself."""
        for problem in self._problems():
            raise self._error(f"internal error: {problem}")

    def _wants_at_once(self) -> bool:
        return not self.gave_up and self.rules.cadence.waits(self.num_quiet >= self.rules.settled_after)

    def _on_measured(self, event: StepMeasured) -> list[SplitAction]:
        sizes = self.state.batch_sizes
        if not len(event.shares) == len(event.observations) == len(sizes):
            raise self._error(f"got reports of {len(event.observations)} ranks, allowed: of {len(sizes)}")
        self.num_steps += 1
        is_newest = event.shares == scaled_to_step(sum(event.shares), sizes)
        if (
            self.num_steps <= self.rules.warm_up_steps
            or self.gave_up
            or self.is_pending
            or not (is_newest or self.rules.learns_from_any_split)
        ):
            return []
        self.is_pending = True
        return [AskPolicy(self.state, event.observations)]

    def _on_decided(self, event: Decided) -> list[SplitAction]:
        if self.gave_up:
            return []  # the policy was asked before a later report ended balancing
        if not self.is_pending:
            raise self._error("got Decided, but the policy was not asked")
        decision = event.decision
        problem = self._refusal(decision.batch_sizes)
        self.is_pending = False
        if problem:
            return self._give_up(problem)
        self.num_decisions += 1
        changes = zip(decision.batch_sizes, self.state.batch_sizes, strict=True)
        moved = sum(abs(new - old) for new, old in changes) / 2
        is_quiet = moved <= self.rules.large_move * self.state.task.num_samples
        self.num_quiet = self.num_quiet + 1 if is_quiet else 0
        self.state, self.remove = decision.state, decision.remove
        if decision.remove is None or decision.remove in self._offered:
            return []
        self._offered.add(decision.remove)
        return [Offer(decision.remove)]

    def _on_failed(self, event: PolicyFailed) -> list[SplitAction]:
        """The policy failed, or the reports of a step cannot be shown to it."""
        self.is_pending = False
        return [] if self.gave_up else self._give_up(event.problem)

    def _on_announced(self, event: Announced) -> list[SplitAction]:
        announced, before = event.announcement, self.in_force
        if sum(announced.batch_sizes) != sum(before.batch_sizes):
            raise self._error(
                f"got shares {announced.batch_sizes}, allowed: a sum of {sum(before.batch_sizes)}"
            )
        self.num_changes += announced.batch_sizes != before.batch_sizes
        self.in_force = announced
        return []

    def _give_up(self, problem: str) -> list[SplitAction]:
        self.gave_up = True
        self.remove = None  # the policy can no longer confirm it
        return [GiveUp(problem)]

    def _refusal(self, sizes: tuple[int, ...]) -> str:
        """Why a policy's split cannot be used; empty if it can."""
        task = self.state.task
        are_counts = all(isinstance(size, int) and size >= 0 for size in sizes)
        if are_counts and len(sizes) == task.num_workers and sum(sizes) == task.num_samples:
            return ""
        return f"the policy split {task.num_samples} samples over {task.num_workers} ranks as {sizes}"

    def _problems(self) -> Iterator[str]:
        for name, sizes in (("decided", self.state.batch_sizes), ("in force", self.in_force.batch_sizes)):
            if sum(sizes) != self.state.task.num_samples:
                yield f"the shares {name} sum to {sum(sizes)}, not {self.state.task.num_samples}"
        if self._refusal(self.state.batch_sizes):
            yield self._refusal(self.state.batch_sizes)
        if self.gave_up and (self.is_pending or self.remove is not None):
            yield "a policy that is no longer asked has a pending decision or an offer"
        if self.remove is not None and self.remove not in self._offered:
            yield f"rank {self.remove} was never offered"
        if self.num_decisions > max(0, self.num_steps - self.rules.warm_up_steps):
            yield f"{self.num_decisions} decisions on {self.num_steps} steps"

    def _error(self, problem: str) -> SplitError:
        return SplitError(problem, self.events)


def replay(rules: SplitRules, state: Any, events: Iterable[SplitEvent], num_quiet: int = 0) -> Splitting:
    """Process recorded events again, with the same state or the same error as when they were recorded."""
    machine = Splitting(rules, state, num_quiet)
    for event in events:
        machine.handle(event)
    return machine


_HANDLERS: dict[type[SplitEvent], Callable[[Splitting, Any], list[SplitAction]]] = {
    StepMeasured: Splitting._on_measured,
    Decided: Splitting._on_decided,
    PolicyFailed: Splitting._on_failed,
    Announced: Splitting._on_announced,
}
