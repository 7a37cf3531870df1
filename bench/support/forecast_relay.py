"""Relay TCP connections at the pace of links that they share, without root: an emulated network card.

Every link is one budget of bytes per second. A route accepts connections on a port of its own, connects each
to its target, and charges what it carries forwards to one link and what it carries backwards to another. All
connections of a link that have something to send share it equally, whatever route they belong to. Buffers
are small, so a sender feels at once when the link is full.

    python -m support.forecast_relay PLAN      # prints the ports of the routes, then relays until stdin ends

`PLAN` is JSON: {"links": {"down0": 12.5e6}, "routes": [["127.0.0.1:4000", "up0", "down0"]]}.
"""

from __future__ import annotations

import json
import logging
import selectors
import socket
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

log = logging.getLogger(__name__)

TICK_S = 0.001
"""How long a busy relay sleeps between two rounds. At 12.5 MB/s that is 12.5 kB."""
BUFFER_BYTES = 64 * 1024
"""Of each socket, in each direction (the kernel doubles it). Four ticks at 12.5 MB/s, so a late round finds
enough to send."""
SMALLEST_BYTES = 1448
"""A share below one Ethernet segment waits for the next round."""


@dataclass(frozen=True, slots=True)
class Route:
    """Connections to one target.

    Attributes:
        target: host and port, "127.0.0.1:4000".
        forwards: link of the bytes to the target.
        backwards: link of the bytes from the target.
    """

    target: str
    forwards: str
    backwards: str


@dataclass(slots=True, eq=False)
class _Pipe:
    """One direction of a connection."""

    source: socket.socket
    sink: socket.socket
    link: str
    pending: bytes = b""  # read, but the sink's buffer was full
    has_ended: bool = False


@dataclass(slots=True, eq=False)
class _Budget:
    """Bytes that a link may carry now. A link that has nothing to carry saves nothing."""

    bytes_per_s: float
    left: float = 0.0
    filled_s: float = 0.0
    is_busy: bool = False
    carried: int = 0
    active: list[_Pipe] = field(default_factory=list)

    def fill(self, now: float) -> None:
        """Add what the link could have carried while it had something to carry."""
        if self.is_busy:
            self.left += (now - self.filled_s) * self.bytes_per_s
        else:
            self.left = min(self.left, 0.0) + SMALLEST_BYTES
        self.filled_s = now
        self.is_busy = bool(self.active)


class Relay:
    """Relays in a thread of its own.

    Attributes:
        ports: on which each route accepts connections, in the order of the routes.
    """

    def __init__(self, bytes_per_s_by_link: Mapping[str, float], routes: Sequence[Route]) -> None:
        self._budgets = {link: _Budget(rate) for link, rate in bytes_per_s_by_link.items()}
        self._selector = selectors.DefaultSelector()
        self._pipes: list[_Pipe] = []
        self.ports: list[int] = []
        self._listeners: list[socket.socket] = []
        for route in routes:
            listener = socket.socket()
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, BUFFER_BYTES)  # accepted ones inherit it
            listener.bind(("127.0.0.1", 0))
            listener.listen(64)
            self._selector.register(listener, selectors.EVENT_READ, route)
            self._listeners.append(listener)
            self.ports.append(listener.getsockname()[1])
        self._wake, self._woken = socket.socketpair()
        self._selector.register(self._woken, selectors.EVENT_READ, None)
        self._thread = threading.Thread(target=self._run, name="relay", daemon=True)

    def __enter__(self) -> Relay:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._wake.send(b".")
        self._thread.join()
        for pipe in self._pipes:
            pipe.source.close()
            pipe.sink.close()
        for listener in self._listeners:
            listener.close()
        self._selector.close()
        self._wake.close()
        self._woken.close()

    def bytes_carried(self, link: str) -> int:
        """Since the start."""
        return self._budgets[link].carried

    def _run(self) -> None:
        blocked: dict[_Pipe, None] = {}  # pipes that wait for their sink
        timeout: float | None = None
        while True:
            ready: list[_Pipe] = list(blocked)
            for key, _ in self._selector.select(timeout):
                if key.fileobj is self._woken:
                    return
                if isinstance(key.data, Route):
                    self._accept(key.fileobj, key.data)  # type: ignore[arg-type]
                elif key.data not in blocked:
                    ready.append(key.data)
            blocked = self._serve(ready)
            if not ready:
                timeout = None
                continue
            time.sleep(TICK_S)
            timeout = 0.0

    def _serve(self, ready: list[_Pipe]) -> dict[_Pipe, None]:
        """Carry as much as the budgets allow; return the pipes that wait for their sink."""
        blocked: dict[_Pipe, None] = {}
        now = time.monotonic()
        for budget in self._budgets.values():
            budget.active = []
        for pipe in ready:
            self._budgets[pipe.link].active.append(pipe)
        for budget in self._budgets.values():
            budget.fill(now)
            waiting = budget.active
            while waiting and budget.left >= SMALLEST_BYTES:
                share = max(int(budget.left / len(waiting)), SMALLEST_BYTES)
                again = []
                for pipe in waiting:
                    carried = self._carry(pipe, share)
                    budget.left -= carried
                    budget.carried += carried
                    if pipe.pending:
                        blocked[pipe] = None
                    elif carried:
                        again.append(pipe)
                waiting = again
            if not waiting:  # the link could have carried more, so it was idle for a while
                budget.left = min(budget.left, SMALLEST_BYTES)
        return blocked

    def _carry(self, pipe: _Pipe, most: int) -> int:
        """Move up to so many bytes; returns how many have left."""
        try:
            if not pipe.pending:
                pipe.pending = pipe.source.recv(most)
                if not pipe.pending:
                    self._end(pipe)
                    return 0
            sent = pipe.sink.send(pipe.pending)
        except BlockingIOError:
            return 0
        except OSError:  # one side has reset the connection: both sides learn of it
            self._end(pipe)
            return 0
        pipe.pending = pipe.pending[sent:]
        return sent

    def _accept(self, listener: socket.socket, route: Route) -> None:
        client, _ = listener.accept()
        host, port = route.target.rsplit(":", 1)
        server = socket.socket()
        server.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, BUFFER_BYTES)
        try:
            server.connect((host, int(port)))
        except OSError:  # nobody listens yet: the client sees a reset, and tries again
            server.close()
            client.close()
            return
        for end in (client, server):
            end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, BUFFER_BYTES)
            end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            end.setblocking(False)
        for pipe in (_Pipe(client, server, route.forwards), _Pipe(server, client, route.backwards)):
            self._selector.register(pipe.source, selectors.EVENT_READ, pipe)
            self._pipes.append(pipe)

    def _end(self, pipe: _Pipe) -> None:
        """Pass the end of a direction on; close the connection when both directions have ended."""
        pipe.has_ended, pipe.pending = True, b""
        self._selector.unregister(pipe.source)
        try:
            pipe.sink.shutdown(socket.SHUT_WR)
        except OSError:  # the other side has gone already
            log.debug("the sink of a connection on %s has gone", pipe.link)
        other = next(p for p in self._pipes if p.source is pipe.sink and p.sink is pipe.source)
        if other.has_ended:
            pipe.source.close()
            pipe.sink.close()
            self._pipes.remove(pipe)
            self._pipes.remove(other)


def main() -> None:
    """Relay what the plan says until stdin ends."""
    plan = json.loads(sys.argv[1])
    with Relay(plan["links"], [Route(*route) for route in plan["routes"]]) as relay:
        print(json.dumps(relay.ports), flush=True)
        sys.stdin.read()


if __name__ == "__main__":
    main()
