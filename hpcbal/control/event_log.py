"""Remember what has happened lately, and tell it in every error."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from hpcbal.control.messages import Event
from hpcbal.errors import HpcbalError

NUM_TOLD_PER_DNN = 10
NUM_TOLD = 20
MAX_LINE = 200


class ControlError(HpcbalError):
    """The state machine was given an event that cannot happen in its state, or found itself inconsistent.

    Attributes:
        problem: what was given, what is allowed.
        dnn_id: the DNN it is about; empty if it is about the ensemble.
        dnn_events: the last events of that DNN, oldest first.
        events: the whole bounded event log, oldest first; `replay` reproduces the error from it.
    """

    def __init__(
        self,
        problem: str,
        dnn_id: str = "",
        dnn_events: Sequence[Event] = (),
        events: Sequence[Event] = (),
    ) -> None:
        self.problem = problem
        self.dnn_id = dnn_id
        self.dnn_events = tuple(dnn_events)
        self.events = tuple(events)
        super().__init__(problem, dnn_id, self.dnn_events, self.events)

    def __str__(self) -> str:
        lines = [self.problem]
        if self.dnn_id:
            lines += _story(f"events of {self.dnn_id}", self.dnn_events)
        lines += _story("last events of the ensemble", self.events[-NUM_TOLD:])
        return "\n".join(lines)


class EventLog:
    """The events since the origin, at most `max_events` of them.

    The origin is the start of the run, or a round's beginning at which the log was emptied
    (`restart`) because it was more than half full. If a single round is longer than the bound, the
    oldest events are dropped and the log tells that it is no longer whole.
    """

    def __init__(self, max_events: int) -> None:
        self._events: deque[Event] = deque(maxlen=max_events)
        self._max_events = max_events
        self.num_dropped = 0

    def append(self, event: Event) -> None:
        """Add one event; drops the oldest one if the log is full."""
        if len(self._events) == self._max_events:
            self.num_dropped += 1
        self._events.append(event)

    def restart(self, events: Sequence[Event]) -> None:
        """Begin anew at another origin with `events`."""
        self._events = deque(events, maxlen=self._max_events)
        self.num_dropped = 0

    @property
    def is_half_full(self) -> bool:
        return self.num_dropped > 0 or len(self._events) > self._max_events // 2

    @property
    def events(self) -> tuple[Event, ...]:
        return tuple(self._events)

    def of_dnn(self, dnn_id: str) -> tuple[Event, ...]:
        """The last events of one DNN, oldest first."""
        return tuple(e for e in self._events if getattr(e, "dnn_id", None) == dnn_id)[-NUM_TOLD_PER_DNN:]


def _story(title: str, events: Sequence[Event]) -> list[str]:
    if not events:
        return [f"  {title}: none"]
    return [f"  {title}:", *(f"    {_shorten(repr(event))}" for event in events)]


def _shorten(line: str) -> str:
    return line if len(line) <= MAX_LINE else line[: MAX_LINE - 3] + "..."
