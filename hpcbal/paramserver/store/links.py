"""Links of given speed: when a message leaves its sender, and when it has arrived.

The engine paces emulated executors with this arithmetic, and the simulator runs on it, so both agree on what
a link does. Times are integers, in nanoseconds of one clock that all ranks share.
"""

from __future__ import annotations

import heapq
import itertools
import math
from typing import Generic, TypeVar

from hpcbal.errors import HpcbalError

NS_PER_S = 1e9

T = TypeVar("T")


class Link(Generic[T]):
    """The link of one rank, shared by all that it sends and all that it receives.

    Each direction carries one message after the other. A message takes the sender's link as soon as that is
    free, and the receiver's link from the same moment on, or when that is free: it cuts through, so it does
    not wait until the sender has sent the last byte. It has arrived when both links have carried all of it.
    A receiver carries messages in the order in which they start, whoever sends them. A message that waits for
    its sender's link takes nothing of the receiver's.

    Messages between two ranks arrive in the order in which they are sent.

    Args:
        bytes_per_s: in each direction, > 0.
        latency_s: added to each message that arrives here, >= 0.

    Raises:
        HpcbalError: if an argument is out of its range.
    """

    def __init__(self, bytes_per_s: float, latency_s: float = 0.0) -> None:
        if not (bytes_per_s > 0 and math.isfinite(bytes_per_s)) or not 0 <= latency_s < math.inf:
            raise HpcbalError(
                f"a link of {bytes_per_s} bytes/s and {latency_s} s of latency; allowed: > 0, and >= 0"
            )
        self._ns_per_byte = NS_PER_S / bytes_per_s
        self._latency_ns = round(NS_PER_S * latency_s)
        self._up_free_ns = self._down_free_ns = 0
        self._order = itertools.count()
        self._announced: list[tuple[int, int, int, int, T]] = []
        self._due: list[tuple[int, int, T]] = []

    def leave(self, now_ns: int, num_bytes: int) -> tuple[int, int]:
        """Take this link for a message that is sent now.

        Returns: when it starts, and when its last byte has left. The receiver must know both.
        """
        start_ns = max(now_ns, self._up_free_ns)
        self._up_free_ns = start_ns + round(num_bytes * self._ns_per_byte)
        return start_ns, self._up_free_ns

    def announce(self, message: T, num_bytes: int, start_ns: int, end_ns: int) -> None:
        """Expect a message.

        Messages should be announced before they start. One that is announced later is carried as soon as the
        link is free of those that were carried before.

        Args:
            message: returned by `arrived`.
            start_ns, end_ns: from the sender's `leave`.
        """
        heapq.heappush(self._announced, (start_ns, next(self._order), end_ns, num_bytes, message))

    def arrived(self, now_ns: int) -> list[T]:
        """The messages that have arrived since the last call, in the order of their arrival."""
        while self._announced and self._announced[0][0] <= now_ns:
            start_ns, _, end_ns, num_bytes, message = heapq.heappop(self._announced)
            self._down_free_ns = max(start_ns, self._down_free_ns) + round(num_bytes * self._ns_per_byte)
            arrival_ns = max(end_ns, self._down_free_ns) + self._latency_ns
            heapq.heappush(self._due, (arrival_ns, next(self._order), message))
        messages = []
        while self._due and self._due[0][0] <= now_ns:
            messages.append(heapq.heappop(self._due)[2])
        return messages

    @property
    def next_ns(self) -> int | None:
        """When `arrived` is to be called next; None: nothing is on its way here.

        A message starts or arrives at that time.
        """
        times = [queue[0][0] for queue in (self._announced, self._due) if queue]
        return min(times, default=None)
