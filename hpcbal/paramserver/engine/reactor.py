"""The one loop of an executor: whatever it waits for, it serves whoever asks it."""

from __future__ import annotations

import time
from collections.abc import Callable

from hpcbal.comm.channel import Channel, Message
from hpcbal.paramserver.engine.wire import Transport

SPIN_S = 100e-6
"""A wait polls without a pause for so long after the last event: the next one of an exchange comes within it.

MPI yields the core at every poll that finds nothing, if there are more ranks than cores.
"""

LATE_SHARE = 1 / 12
"""After that, a wait sleeps for this share of the time waited, so it takes at most that much longer."""

FIRST_SLEEP_S = 20e-6
MAX_SLEEP_S = 2e-3

CHANNEL_INTERVAL_S = 100e-6
"""Between polls of the control channel, which costs as much as one of the transport."""


MOST_POLLS = 32
"""Of `Reactor.listen`: more than messages that a worker may have missed, and few enough under any load."""


class Patience:
    """The pauses of one wait: none at first, then sleeps that grow with the time since something happened."""

    __slots__ = ("_since_s",)

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        """Something has happened: more may follow soon."""
        self._since_s = time.monotonic()

    def wait(self, now_s: float, most_s: float = MAX_SLEEP_S) -> bool:
        """Pause, for at most `most_s`; returns whether it has slept."""
        waited_s = now_s - self._since_s
        if waited_s < SPIN_S:
            return False
        time.sleep(max(0.0, min(max(FIRST_SLEEP_S, LATE_SHARE * waited_s), MAX_SLEEP_S, most_s)))
        return True


class Reactor:
    """Polls frames, control messages and timers.

    Args:
        transport: its headers go where `Transport.open` has been told.
        channel: control messages to and from the master.
        on_message: called with each control message.
    """

    def __init__(self, transport: Transport, channel: Channel, on_message: Callable[[Message], None]) -> None:
        self.transport = transport
        self.channel = channel
        self._on_message = on_message
        self._channel_due_s = 0.0
        self._polls: list[Callable[[float], bool]] = []

    def add(self, poll: Callable[[float], bool]) -> None:
        """Also call `poll` with the time, in seconds of `time.monotonic`; it returns whether it did
        anything."""
        self._polls.append(poll)

    def poll(self) -> bool:
        """Handle what is there; returns whether there was anything."""
        happened = self.transport.poll()
        now_s = time.monotonic()
        for poll in self._polls:
            happened |= poll(now_s)
        if now_s >= self._channel_due_s:
            self._channel_due_s = now_s + CHANNEL_INTERVAL_S
            found = self.channel.receive()
            if found is not None:
                self._channel_due_s = 0.0  # more may have come with it
                self._on_message(found[1])
                return True
        return happened

    def listen(self) -> None:
        """Handle what is there, amid other work."""
        for _ in range(MOST_POLLS):
            if not self.poll():
                return

    def wait_until(self, condition: Callable[[], bool], until_s: float | None = None) -> bool:
        """Poll until `condition` holds, without burning a core.

        Args:
            until_s: give up at this time of `time.monotonic`; None: never.

        Returns: whether the condition holds.
        """
        patience = Patience()
        while not condition():
            now_s = time.monotonic()
            if until_s is not None and now_s >= until_s:
                return False
            if self.poll():
                patience.reset()
            elif patience.wait(now_s, MAX_SLEEP_S if until_s is None else until_s - now_s):
                self._channel_due_s = 0.0
        return True

    def sleep_until(self, until_s: float) -> None:
        """Serve until a time of `time.monotonic`; what takes no time at all is skipped."""
        if until_s > time.monotonic():
            self.wait_until(_never, until_s)


def _never() -> bool:
    return False


def wait_for_message(channel: Channel, meanwhile: Callable[[], None]) -> tuple[int, Message]:
    """The next control message at the master, and who sent it.

    In `sync` every step waits for the master, so it notices messages sooner than `Channel.wait` does.

    Args:
        meanwhile: called between polls; may raise an exception to end the wait.
    """
    patience = Patience()
    while (found := channel.receive()) is None:
        meanwhile()
        patience.wait(time.monotonic())
    return found
