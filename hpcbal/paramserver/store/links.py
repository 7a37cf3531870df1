"""Links of given speed: when a message leaves its sender, and when it has arrived.

`Link` carries one message after the other. The engine paces emulated executors with this arithmetic, and the
simulator runs on it, so both agree on what a link does. `SharedLinks` lets messages share links, as TCP does:
their speeds depend on all others that are on their way, which only the simulator knows. Times are integers,
in nanoseconds of one clock that all ranks share.
"""

from __future__ import annotations

import heapq
import itertools
import math
from collections import defaultdict, deque
from collections.abc import Iterable, Mapping
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

    Raises:
        HpcbalError: if an argument is out of its range.
    """

    def __init__(self, bytes_per_s: float) -> None:
        if not (bytes_per_s > 0 and math.isfinite(bytes_per_s)):
            raise HpcbalError(f"a link of {bytes_per_s} bytes/s; allowed: > 0")
        self._ns_per_byte = NS_PER_S / bytes_per_s
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
            arrival_ns = max(end_ns, self._down_free_ns)
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


End = tuple[int, str]
"""A rank's link in one direction: `up` or `down`."""

DONE_BYTES = 1e-6
"""Left of a message that has arrived."""


class SharedLinks(Generic[T]):
    """The links of all ranks, whose messages share them fairly (max-min over the links of both ends).

    Messages from one rank to another follow each other, as in one stream. All streams that have something to
    carry share links, and the speeds change whenever one begins or ends.

    Args:
        bytes_per_s: of each rank's link in each direction, > 0.
    """

    def __init__(self, bytes_per_s: Mapping[int, float]) -> None:
        self._bytes_per_s = bytes_per_s
        self._waiting: defaultdict[tuple[int, int], deque[tuple[int, T]]] = defaultdict(deque)
        self._left: dict[tuple[int, int], float] = {}  # bytes of the first message of each stream
        self._rates: dict[tuple[int, int], float] = {}  # bytes/s
        self._until_ns = 0

    def send(self, now_ns: int, source: int, destination: int, num_bytes: int, message: T) -> None:
        """Send a message; `arrived` was called at all earlier times at which messages were due."""
        self._advance(now_ns)
        stream = source, destination
        self._waiting[stream].append((num_bytes, message))
        if stream not in self._left:
            self._left[stream] = float(num_bytes)
            self._rates = max_min_rates(self._left, self._bytes_per_s)

    def arrived(self, now_ns: int) -> list[T]:
        """The messages that have arrived by now, since the last call."""
        self._advance(now_ns)
        over = [stream for stream, left in self._left.items() if left <= DONE_BYTES]
        messages = []
        for stream in over:
            waiting = self._waiting[stream]
            messages.append(waiting.popleft()[1])
            del self._left[stream]
            if waiting:
                self._left[stream] = float(waiting[0][0])
        if any(stream not in self._left for stream in over):
            self._rates = max_min_rates(self._left, self._bytes_per_s)
        return messages

    @property
    def next_ns(self) -> int | None:
        """When the next message arrives if none is sent before; None: none is on its way."""
        if not self._left:
            return None
        seconds = min(left / self._rates[stream] for stream, left in self._left.items())
        return self._until_ns + math.ceil(NS_PER_S * seconds)

    def _advance(self, now_ns: int) -> None:
        seconds, self._until_ns = (now_ns - self._until_ns) / NS_PER_S, now_ns
        if seconds > 0:
            for stream in self._left:
                self._left[stream] -= seconds * self._rates[stream]


def max_min_rates(
    streams: Iterable[tuple[int, int]], bytes_per_s: Mapping[int, float]
) -> dict[tuple[int, int], float]:
    """Return the rates of streams: none can be faster unless one that is no faster becomes slower.

    Args:
        streams: sender and receiver of each.
        bytes_per_s: of each rank's link in each direction.
    """
    by_end: defaultdict[End, set[tuple[int, int]]] = defaultdict(set)
    for stream in streams:
        by_end[stream[0], "up"].add(stream)
        by_end[stream[1], "down"].add(stream)
    free = {end: bytes_per_s[end[0]] for end in by_end}
    rates: dict[tuple[int, int], float] = {}
    while by_end:
        # The fullest link decides for its streams; what they leave of other links is for the others there.
        fullest = min(by_end, key=lambda end: free[end] / len(by_end[end]))
        rate = free[fullest] / len(by_end[fullest])
        for stream in by_end.pop(fullest):
            rates[stream] = rate
            other = (stream[1], "down") if fullest[1] == "up" else (stream[0], "up")
            if other in by_end:
                free[other] = max(0.0, free[other] - rate)
                by_end[other].discard(stream)
                if not by_end[other]:
                    del by_end[other]
    return rates
