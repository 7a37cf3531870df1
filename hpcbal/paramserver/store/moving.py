"""Links of given speed, and which bytes of moving blocks are sent over them next: few at a time.

Turns and moving blocks share links. A message waits for what its link carries already, so a block of
100 MB that is sent at once holds up pulls and pushes until it is through. In pieces, with a few of them on
their way, it takes what turns leave free.

The engine paces emulated executors with this arithmetic, and the simulator runs on it, so both agree on what
a link does. Times are integers, in nanoseconds of one clock that all ranks share.
"""

from __future__ import annotations

import heapq
import itertools
import math
from collections import deque
from dataclasses import dataclass, field
from typing import Generic, NamedTuple, TypeVar

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


WINDOW_S = 0.02
"""Time in which a link carries what is on its way; a message of a turn waits for no more than this."""

WINDOW_BYTES = 16 << 20
"""On its way over a link of unknown speed: 13 ms at 10 Gbit/s. Not less, because a receiver that computes
acknowledges nothing."""

PIECES_PER_WINDOW = 2
"""While one is acknowledged, the next is on its way."""


class Segment(NamedTuple):
    """Bytes of a block to send.

    Attributes:
        start, stop: bytes start..stop-1 of the block's content.
    """

    block: int
    destination: int
    start: int
    stop: int


@dataclass(slots=True)
class _Moving:
    block: int
    destination: int
    num_bytes: int
    sent: int = 0
    received: int = 0


@dataclass(slots=True)
class MoveQueue:
    """The blocks that one rank gives away.

    Destinations take turns, and the blocks of each go one after the other. At most `window_bytes` are on
    their way, or one piece.

    Args:
        window_bytes: >= 1.
        piece_bytes: largest piece, >= 1; None: blocks are not cut.

    Attributes:
        bytes_under_way: sent and not acknowledged.
        is_held: whether nothing is to be sent.

    Raises:
        HpcbalError: an argument is out of its range.
    """

    window_bytes: int
    piece_bytes: int | None
    bytes_under_way: int = 0
    is_held: bool = False
    _waiting: dict[int, deque[_Moving]] = field(default_factory=dict)  # by destination, the next one first
    _moving: dict[int, _Moving] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.window_bytes < 1 or (self.piece_bytes is not None and self.piece_bytes < 1):
            raise HpcbalError(
                f"a window of {self.window_bytes} bytes, pieces of {self.piece_bytes}; allowed: >= 1"
            )

    @property
    def is_quiet(self) -> bool:
        """Whether nothing is on its way."""
        return not self.bytes_under_way

    def add(self, block: int, destination: int, num_bytes: int) -> None:
        """Give a block away.

        Args:
            num_bytes: of its content, >= 1.

        Raises:
            HpcbalError: it is being given away already, or has no content.
        """
        if block in self._moving or num_bytes < 1:
            raise HpcbalError(f"block {block} of {num_bytes} bytes cannot be given away, or is already")
        moving = self._moving[block] = _Moving(block, destination, num_bytes)
        self._waiting.setdefault(destination, deque()).append(moving)

    def hold(self) -> None:
        """Send nothing until `go_on`."""
        self.is_held = True

    def go_on(self) -> None:
        """Send again."""
        self.is_held = False

    def next_piece(self) -> Segment | None:
        """The piece to send now; None: nothing waits, or as much as allowed is on its way."""
        if self.is_held or not self._waiting:
            return None
        destination, queue = next(iter(self._waiting.items()))
        moving = queue[0]
        stop = moving.num_bytes
        if self.piece_bytes is not None:
            stop = min(stop, moving.sent + self.piece_bytes)
        size = stop - moving.sent
        if self.bytes_under_way and self.bytes_under_way + size > self.window_bytes:
            return None
        piece = Segment(moving.block, destination, moving.sent, stop)
        moving.sent = stop
        self.bytes_under_way += size
        if stop == moving.num_bytes:
            queue.popleft()
        del self._waiting[destination]
        if queue:
            self._waiting[destination] = queue  # the others come first
        return piece

    def received(self, block: int, num_bytes: int) -> int | None:
        """Bytes of a block have arrived.

        Returns: the destination if it has all of them now; None: it has not.

        Raises:
            HpcbalError: so many bytes of it are not on their way.
        """
        moving = self._moving.get(block)
        if moving is None or moving.received + num_bytes > moving.sent:
            raise HpcbalError(f"{num_bytes} bytes of block {block} have arrived, which were not sent")
        moving.received += num_bytes
        self.bytes_under_way -= num_bytes
        if moving.received < moving.num_bytes:
            return None
        del self._moving[block]
        return moving.destination


def queue_of_link(bytes_per_s: float | None, *, cuts: bool) -> MoveQueue:
    """The queue of a rank.

    Args:
        bytes_per_s: of its link, each way; None: not known.
        cuts: whether blocks may be sent in pieces.
    """
    window = WINDOW_BYTES if bytes_per_s is None else max(PIECES_PER_WINDOW, round(bytes_per_s * WINDOW_S))
    return MoveQueue(window, window // PIECES_PER_WINDOW if cuts else None)
