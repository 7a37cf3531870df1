"""Control messages between ranks, for any transport."""

from __future__ import annotations

import logging
import math
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from hpcbal.comm.backoff import Backoff

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Message:
    """A small frozen value that is pickled on its way; a message never contains arrays."""

    def __reduce__(self) -> tuple[Any, ...]:
        """Return how to make it again: in half the time that dataclasses take."""
        names: tuple[str, ...] = self.__match_args__  # of the fields
        return type(self), tuple([getattr(self, name) for name in names])


class Channel(ABC):
    """One rank's end of the control messages.

    Sending never waits for the receiver. Messages from one rank to another arrive in the order in which they
    were sent. Waiting burns no core.
    """

    @property
    @abstractmethod
    def rank(self) -> int:
        """This rank, 0 to size - 1."""

    @property
    @abstractmethod
    def size(self) -> int:
        """Number of ranks that the channel connects."""

    @property
    def sends_from_threads(self) -> bool:
        """Whether another thread than the one that receives may send."""
        return True

    @abstractmethod
    def send(self, destination: int, message: Message) -> None:
        """Accept `message` for rank `destination`; returns at once."""

    @abstractmethod
    def send_to_all(self, destinations: Sequence[int], message: Message) -> None:
        """Send `message` to each of `destinations`; it is pickled only once."""

    @abstractmethod
    def receive(self) -> tuple[int, Message] | None:
        """Return the next message and the rank that sent it; None if there is none now."""

    @abstractmethod
    def is_sent(self) -> bool:
        """Whether every message has left this rank."""

    def wait(self, meanwhile: Callable[[], None] | None = None) -> tuple[int, Message]:
        """Wait for the next message; return it and the rank that sent it.

        Args:
            meanwhile: called between polls; may raise an exception to end the wait.
        """
        backoff = Backoff.idle()
        while True:
            found = self.receive()
            if found is not None:
                return found
            if meanwhile is not None:
                meanwhile()
            backoff.wait()

    def flush(self, patience_s: float = 10.0) -> None:
        """Wait until every message has left this rank; the memory of those that have not is in use.

        Args:
            patience_s: after this time, a line in the log says that it still waits.
        """
        backoff = Backoff()
        warn_s = time.monotonic() + patience_s
        while not self.is_sent():
            if time.monotonic() > warn_s:
                log.warning(
                    "rank %d waits for its last messages to leave: a rank has received nothing for %g s",
                    self.rank,
                    patience_s,
                )
                warn_s = math.inf
            backoff.wait()
