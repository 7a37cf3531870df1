"""Where an executor runs in virtual time, and when each subtask of a turn may start; as `engine.place`."""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import Protocol

from hpcbal.simulator.serving.clock import NS_PER_S, Clock

Waits = Generator[Callable[[], bool], None, None]
"""What an executor does, one step after the other; it yields what it waits for."""

TimedWaits = Generator[Callable[[], bool], None, float]
"""The same; it returns how many seconds it took once it had begun."""


class Place(Protocol):
    """The machine of an executor.

    Attributes:
        waits_for_pushes: see `engine.place.Place`.
    """

    @property
    def waits_for_pushes(self) -> bool: ...

    def loading(self) -> Waits:
        """Make or load the executor's blocks."""

    def saving(self) -> Waits:
        """Write them."""

    def communicating(self, step: int | None = None) -> Waits:
        """Wait until a pull or a push may begin; `communicated` follows.

        Args:
            step: of the turn; None: it is of no turn.
        """

    def communicated(self) -> None:
        """The pull is answered, or the push is applied."""

    def computing(self, seconds: float) -> TimedWaits:
        """Compute for so long, once it may begin."""


class Alone:
    """A rank that one executor has for itself: its subtasks follow each other at once.

    Args:
        clock: of the simulation.
        look: called when something that the executor waits for may have come.
    """

    waits_for_pushes = False

    def __init__(self, clock: Clock, look: Callable[[], None]) -> None:
        self._clock, self._look = clock, look

    def loading(self) -> Waits:
        """It takes no time."""
        yield from ()

    def saving(self) -> Waits:
        """It takes no time."""
        yield from ()

    def communicating(self, step: int | None = None) -> Waits:
        """See `Place`."""
        yield from ()

    def communicated(self) -> None:
        """See `Place`."""

    def computing(self, seconds: float) -> TimedWaits:
        """See `Place`."""
        yield from sleep(self._clock, self._look, seconds)
        return seconds


def sleep(clock: Clock, look: Callable[[], None], seconds: float) -> Waits:
    """Let so much time pass, >= 0."""
    if not seconds:
        return
    until_ns = clock.now_ns + round(seconds * NS_PER_S)
    clock.at(until_ns, look)
    yield lambda: clock.now_ns >= until_ns
