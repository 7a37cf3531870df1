"""Links that carry one message after another, as those of hpcbal's emulated machines do.

`paramserver.store.links` is the same arithmetic, in whole nanoseconds and spread over ranks.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(slots=True)
class Transfer:
    """A message on its way.

    Attributes:
        worker, server: its ends.
        position: of its operation.
        num_bytes: of it.
        starts_s: when the sender's link takes it.
        left_s: when its last byte has left.
        has_begun: whether the receiver's link has taken it.
    """

    worker: int
    server: int
    position: int
    num_bytes: float
    starts_s: float = 0.0
    left_s: float = 0.0
    has_begun: bool = False


class LinksInTurn:
    """One direction of the links of all workers and servers.

    A message takes the sender's link when that is free, and the receiver's from the same moment on, or when
    that is free: it does not wait there for its last byte. It has arrived when both have carried all of it. A
    receiver carries messages in the order in which they start.

    Args:
        worker_bytes_per_s, server_bytes_per_s: of each link, > 0; those of workers may be infinite.
        is_down: whether servers send, and not workers.
    """

    def __init__(
        self, worker_bytes_per_s: Sequence[float], server_bytes_per_s: Sequence[float], is_down: bool
    ) -> None:
        self._rates = list(worker_bytes_per_s), list(server_bytes_per_s)
        self._free_s = [0.0] * len(worker_bytes_per_s), [0.0] * len(server_bytes_per_s)
        self._sender = 1 if is_down else 0

    def leave(self, transfer: Transfer, now_s: float) -> float:
        """Send a message as soon as the sender's link is free; returns when that is."""
        transfer.starts_s, transfer.left_s = self._take(transfer, self._sender, now_s)
        return transfer.starts_s

    def begin(self, transfer: Transfer) -> float:
        """The message starts: take the receiver's link. Returns when it has arrived."""
        transfer.has_begun = True
        _, carried_s = self._take(transfer, 1 - self._sender, transfer.starts_s)
        return max(transfer.left_s, carried_s)

    def _take(self, transfer: Transfer, end: int, now_s: float) -> tuple[float, float]:
        """Take one end's link; returns from when until when."""
        machine = transfer.server if end else transfer.worker
        free_s = self._free_s[end]
        starts_s = max(now_s, free_s[machine])
        free_s[machine] = starts_s + transfer.num_bytes / self._rates[end][machine]
        return starts_s, free_s[machine]

    def busy_s(self, transfer: Transfer) -> float:
        """How long a message takes the link of its server."""
        return transfer.num_bytes / self._rates[1][transfer.server]
