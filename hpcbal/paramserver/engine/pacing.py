"""Emulated machines: frames take the time of links of given speeds."""

from __future__ import annotations

import time
from collections.abc import Callable

from hpcbal.paramserver.store.links import Link


class PacedLink:
    """The link of one executor: holds frames back until they would have arrived.

    Times are those of `time.monotonic_ns`, so all executors of an emulation run on one node.

    Args:
        bytes_per_s: in each direction, > 0.
        latency_s: added to each frame that arrives.
    """

    def __init__(self, bytes_per_s: float, latency_s: float = 0.0) -> None:
        self._link: Link[Callable[[], None]] = Link(bytes_per_s, latency_s)

    def leave(self, num_bytes: int) -> tuple[int, int]:
        """Take the link for a frame; returns when it starts and when its last byte has left, in ns."""
        return self._link.leave(time.monotonic_ns(), num_bytes)

    def arrive(self, num_bytes: int, start_ns: int, end_ns: int, handle: Callable[[], None]) -> None:
        """Call `handle` when a frame has arrived over this link.

        Args:
            start_ns, end_ns: from the sender's `leave`.
        """
        self._link.announce(handle, num_bytes, start_ns, end_ns)

    def poll(self, now_s: float) -> bool:
        """Handle what has arrived; returns whether there was anything."""
        arrived = self._link.arrived(time.monotonic_ns())
        for handle in arrived:
            handle()
        return bool(arrived)

    @property
    def is_idle(self) -> bool:
        """Whether nothing is on its way to this executor, as far as it knows."""
        return self._link.next_ns is None
