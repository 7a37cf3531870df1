"""Frames between ranks in virtual time, over links in turn, as emulated executors have, or shared ones."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from functools import partial

from hpcbal.paramserver.store.links import Link, SharedLinks
from hpcbal.simulator.paramserver.clock import NS_PER_S, Clock, Delay

EAGER_BYTES = 4096
"""MPI keeps a copy of payloads up to this size, so that they count as sent at once, and come with their
frame. Longer ones come when both ranks have looked again: the receiver asks for them, and the sender sends
them."""

Handler = Callable[[], None]


class Network:
    """One full-duplex link per rank, shared by all that the rank talks to; see `Link`.

    Args:
        clock: of the simulation.
        bandwidths: bytes/s of each rank's link, each way.
        sending: time that a rank needs before a frame takes its link, drawn anew for each.
        notice: time from the arrival of a frame until its rank handles it, drawn anew for each.
        payload: time from there until a payload that is not eager is there, drawn anew for each; meanwhile
            the rank handles other frames. None: none.
        are_shared: whether frames share links; otherwise a link carries one after the other.

    Attributes:
        bytes_in, bytes_out: of headers and payloads by rank, from and to other ranks.
    """

    def __init__(
        self,
        clock: Clock,
        bandwidths: Mapping[int, float],
        sending: Delay,
        notice: Delay,
        payload: Delay | None = None,
        *,
        are_shared: bool = False,
    ) -> None:
        self._clock, self._sending, self._notice, self._payload = clock, sending, notice, payload
        self._sent_ns = dict.fromkeys(bandwidths, 0)
        self._handled_ns = dict.fromkeys(bandwidths, 0)
        self._links: dict[int, Link[Handler]] = {
            rank: Link(bytes_per_s) for rank, bytes_per_s in bandwidths.items()
        }
        self._shared = SharedLinks[Handler](bandwidths) if are_shared else None
        self._look = 0
        self._due_ns: dict[int, float] = dict.fromkeys(bandwidths, math.inf)
        self.bytes_in = dict.fromkeys(bandwidths, 0)
        self.bytes_out = dict.fromkeys(bandwidths, 0)

    def send(self, source: int, destination: int, num_bytes: int, handle: Handler) -> None:
        """Send a frame; `handle` is called when it has arrived. A rank reaches itself at once.

        Args:
            num_bytes: of header and payload.
        """
        if source == destination:
            self._defer(destination, handle)
            return
        self.bytes_out[source] += num_bytes
        self.bytes_in[destination] += num_bytes
        if self._sending.mean_s:
            ready_ns = max(self._sent_ns[source], self._clock.now_ns)
            self._sent_ns[source] = ready_ns + round(self._sending.draw_s() * NS_PER_S)
            leave = partial(self._leave, source, destination, num_bytes, handle)
            self._clock.at(self._sent_ns[source], leave)
        else:
            self._leave(source, destination, num_bytes, handle)

    def _leave(self, source: int, destination: int, num_bytes: int, handle: Handler) -> None:
        if self._payload is not None and num_bytes > EAGER_BYTES:
            handle = partial(self._clock.after, self._payload.draw_s(), handle)
        if self._notice.mean_s:
            handle = partial(self._defer, destination, handle)
        if self._shared is not None:
            self._shared.send(self._clock.now_ns, source, destination, num_bytes, handle)
            self._look_ahead(self._shared)
            return
        start_ns, end_ns = self._links[source].leave(self._clock.now_ns, num_bytes)
        self._links[destination].announce(handle, num_bytes, start_ns, end_ns)
        self._look_at(destination, start_ns)

    def _look_ahead(self, links: SharedLinks[Handler]) -> None:
        """Look again when the next frame arrives."""
        self._look += 1
        if (next_ns := links.next_ns) is not None:
            self._clock.at(next_ns, partial(self._poll_shared, links, self._look))

    def _poll_shared(self, links: SharedLinks[Handler], look: int) -> None:
        if look != self._look:
            return  # a frame was sent in between, and another look is due
        arrived = links.arrived(self._clock.now_ns)
        self._look_ahead(links)
        for handle in arrived:
            handle()

    def _defer(self, rank: int, handle: Handler) -> None:
        """Handle a frame when its rank notices it, after all that came before."""
        noticed_ns = self._clock.now_ns + round(self._notice.draw_s() * NS_PER_S)
        self._handled_ns[rank] = max(noticed_ns, self._handled_ns[rank])
        self._clock.at(self._handled_ns[rank], handle)

    def _look_at(self, rank: int, time_ns: int) -> None:
        if time_ns < self._due_ns[rank]:
            self._due_ns[rank] = time_ns
            self._clock.at(time_ns, partial(self._poll, rank))

    def _poll(self, rank: int) -> None:
        if self._clock.now_ns < self._due_ns[rank]:
            return  # another look came in between, and asked for a later one
        self._due_ns[rank] = math.inf
        link = self._links[rank]
        for handle in link.arrived(self._clock.now_ns):
            handle()
        if (next_ns := link.next_ns) is not None:
            self._look_at(rank, next_ns)
