"""Which bytes of moving blocks are sent next: few at a time, so that turns wait for few.

Turns and moving blocks share links. A message waits for what its link carries already, so a block of
100 MB that is sent at once holds up pulls and pushes until it is through. In pieces, with a few of them on
their way, it takes what turns leave free.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import NamedTuple

from hpcbal.errors import HpcbalError

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
