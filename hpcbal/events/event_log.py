"""Remember the latest events of a state machine, and quote them in every error."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, ClassVar, Generic, TypeVar

from hpcbal.errors import HpcbalError

NUM_SHOWN_PER_SUBJECT = 10
NUM_SHOWN = 20
MAX_LINE = 200

E = TypeVar("E")


class MachineError(HpcbalError):
    """A state machine got an event that cannot happen in its state, or found its state inconsistent.

    Each machine has its own subclass, whose `machine` is the machine's name.

    Attributes:
        problem: what was given, and what is allowed.
        subject: what the error is about, such as the name of a job; empty if it is about the whole machine.
        subject_events: the last events of the subject, oldest first.
        events: the whole bounded event log, oldest first; a replay of it reproduces the error.
    """

    machine: ClassVar[str] = "machine"

    def __init__(
        self,
        problem: str,
        subject: str = "",
        subject_events: Sequence[Any] = (),
        events: Sequence[Any] = (),
    ) -> None:
        self.problem = problem
        self.subject = subject
        self.subject_events = tuple(subject_events)
        self.events = tuple(events)
        super().__init__(problem, subject, self.subject_events, self.events)

    def __str__(self) -> str:
        lines = [self.problem]
        if self.subject:
            lines += _story(f"events of {self.subject}", self.subject_events)
        lines += _story(f"last events of the {self.machine}", self.events[-NUM_SHOWN:])
        return "\n".join(lines)


class EventLog(Generic[E]):
    """The events since the origin, at most `max_events`.

    The origin is the machine's start, or a later moment at which the log was emptied (`restart`) because it
    was more than half full. If more events than the bound follow, the oldest are dropped, and `num_dropped`
    shows that the log is incomplete.

    Args:
        max_events: the bound, >= 1.
        subject_of: returns what an event is about; None if it is about the whole machine.
    """

    def __init__(self, max_events: int, subject_of: Callable[[E], str | None]) -> None:
        self._events: deque[E] = deque(maxlen=max_events)
        self._max_events = max_events
        self._subject_of = subject_of
        self.num_dropped = 0

    def append(self, event: E) -> None:
        """Add one event; drops the oldest one if the log is full."""
        if len(self._events) == self._max_events:
            self.num_dropped += 1
        self._events.append(event)

    def restart(self, events: Sequence[E]) -> None:
        """Start again from another origin, with `events`."""
        self._events = deque(events, maxlen=self._max_events)
        self.num_dropped = 0

    @property
    def is_half_full(self) -> bool:
        return self.num_dropped > 0 or len(self._events) > self._max_events // 2

    @property
    def events(self) -> tuple[E, ...]:
        return tuple(self._events)

    def of(self, subject: str) -> tuple[E, ...]:
        """The last events of one subject, oldest first."""
        return tuple(e for e in self._events if self._subject_of(e) == subject)[-NUM_SHOWN_PER_SUBJECT:]


def _story(title: str, events: Sequence[Any]) -> list[str]:
    if not events:
        return [f"  {title}: none"]
    return [f"  {title}:", *(f"    {_shorten(repr(event))}" for event in events)]


def _shorten(line: str) -> str:
    return line if len(line) <= MAX_LINE else line[: MAX_LINE - 3] + "..."
