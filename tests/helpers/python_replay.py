"""The replay of a program once more in Python: an oracle for the compiled one, to the last bit."""

from __future__ import annotations

import bisect
import heapq
import math
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from hpcbal.forecast.program import DELAY, DOWN, SERVER, UP, WORKER, Program, ReplayArrays
from hpcbal.forecast.simulation import Chunk, Stop


def max_min_shares(
    connections: Sequence[tuple[int, int]],
    worker_bytes_per_s: Sequence[float],
    server_bytes_per_s: Sequence[float],
) -> list[float]:
    """Share both ends' links so that no connection gets more at the cost of one that has less.

    All connections grow at the same pace. When a link is full, its connections stop; the others grow on.

    Args:
        connections: (worker, server) of each active connection, no pair twice.
        worker_bytes_per_s: what the link of each worker carries in this direction, > 0; may be infinite.
        server_bytes_per_s: of each server, > 0 and finite.

    Returns: bytes per second of each connection, in the same order.

    Source: max-min fairness by progressive filling. With one server and workers whose links do not limit, it
    is the equal share of [ASGD] Sec. 3.1. With two servers and like links it is the rule of [ASGD] Sec. 5.
    """
    num_workers = len(worker_bytes_per_s)
    left = [*worker_bytes_per_s, *server_bytes_per_s]
    users = [0] * len(left)
    for worker, server in connections:
        users[worker] += 1
        users[num_workers + server] += 1
    shares = [0.0] * len(connections)
    growing = list(range(len(connections)))
    while growing:
        fair = min(left[link] / users[link] for link in range(len(left)) if users[link])
        full = [users[link] > 0 and left[link] / users[link] <= fair for link in range(len(left))]
        still = []
        for index in growing:
            worker, server = connections[index]
            if not (full[worker] or full[num_workers + server]):
                still.append(index)
                continue
            shares[index] = fair
            for link in (worker, num_workers + server):
                left[link] -= fair
                users[link] -= 1
        growing = still
    return shares


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


_START = -1
"""Instead of the operation of a delay: a worker starts."""


@dataclass(slots=True)
class _Link:
    """All transfers of one direction. A connection is worker * M + server."""

    active: list[int] = field(default_factory=list)  # connections, in order
    left: dict[int, float] = field(default_factory=dict)  # bytes of the chunk
    rates: dict[int, float] = field(default_factory=dict)
    shared: list[int] = field(default_factory=list)  # the connections that `rates` are for
    at_s: float = 0.0
    version: int = 0
    is_changed: bool = False
    ends_next: int = -1


class PythonReplay:
    """One replay; see `replay_in_python`."""

    def __init__(
        self,
        program: Program,
        record: ReplayArrays,
        observe: Callable[[Chunk], None] | None,
        stop: Stop,
    ) -> None:
        self._record, self._observe, self._stop = record, observe, stop
        self._num_workers, self._num_steps = program.drawn.shape
        self._num_servers = program.server_slowness.size
        self._kind: list[int] = program.kind.tolist()
        self._server: list[int] = program.server.tolist()
        self._bytes: list[float] = program.num_bytes.tolist()
        self._num_waits: list[int] = program.num_waits.tolist()
        starts, dependents = program.starts.tolist(), program.dependents.tolist()
        self._dependents = [dependents[starts[i] : starts[i + 1]] for i in range(len(self._kind))]
        self._roots: list[list[int]] = program.roots.tolist()
        self._durations: list[list[float]] = program.durations_s.tolist()
        self._drawn: list[list[int]] = program.drawn.tolist()
        self._worker_slowness: list[float] = program.worker_slowness.tolist()
        self._server_slowness: list[float] = program.server_slowness.tolist()
        limits = program.bytes_per_s.tolist()
        self._limits = [(each[: self._num_workers], each[self._num_workers :]) for each in limits]
        self._window = program.window_bytes
        self._links = [_Link(), _Link()]
        self._in_turn = program.in_turn
        self._begins_s: list[float] = program.begins_s.tolist()
        self._turns = [LinksInTurn(*self._limits[kind], is_down=kind == DOWN) for kind in (DOWN, UP)]
        self._sent: list[Transfer] = []  # in turn, all so far
        self._delays: list[tuple[int, int, float]] = []  # worker, operation, when it began; all so far
        self._ready: dict[tuple[int, int, int], deque[int]] = {}
        self._running: dict[tuple[int, int, int], tuple[int, float]] = {}  # -> operation, when it began
        self._rest: dict[tuple[int, int], float] = {}  # (worker, operation) -> bytes after its pause
        self._waits: list[list[int]] = [[] for _ in range(self._num_workers)]
        self._open = [0] * self._num_workers  # operations of the step that have not ended
        self._ends: list[list[float]] = [[] for _ in range(self._num_workers)]
        self._events: list[tuple[float, int, int, int, int]] = []  # time, kind, worker, server, version
        self._transfers = [0] * self._num_workers  # that are under way
        self._computes = [False] * self._num_workers
        self._since = [0.0] * self._num_workers  # when one of these two has changed

    def run(self) -> None:
        """Replay until the first worker has done its steps, and fill in the record."""
        for worker in range(self._num_workers):
            if self._begins_s[worker] > 0.0:
                self._delay(worker, _START, 0.0, self._begins_s[worker])
            else:
                self._start_step(worker, 0.0)
        self._plan_links(0.0)
        now = 0.0
        while max(map(len, self._ends)) < self._num_steps:
            if self._stop.is_set:
                raise KeyboardInterrupt
            now, kind, worker, server, version = heapq.heappop(self._events)
            if not now < math.inf:
                raise ValueError("replay: a time or a rate is no finite number")
            if kind in (DOWN, UP) and self._in_turn:
                self._carry(kind, worker, now)
                continue
            if kind == DELAY:
                self._end_delay(worker, now)
                self._plan_links(now)
                continue
            if kind in (DOWN, UP):
                link = self._links[kind]
                if version != link.version:
                    continue  # shares have changed since
                self._advance(kind, now)
                link.is_changed = True
                worker, server = divmod(link.ends_next, self._num_servers)
            self._end_chunk((worker, kind, server), now)
            self._plan_links(now)
        for kind in (DOWN, UP):
            self._advance(kind, now)
        for worker, ends in enumerate(self._ends):
            self._note(worker, now)
            self._record.ends_s[worker, : len(ends)] = ends
            self._record.num_done[worker] = len(ends)
        self._record.end_s[0] = now

    def _start_step(self, worker: int, now: float) -> None:
        self._waits[worker] = list(self._num_waits)
        self._open[worker] = len(self._num_waits)
        for position in self._roots[self._drawn[worker][len(self._ends[worker])]]:
            self._add(worker, position, now)

    def _add(self, worker: int, position: int, now: float) -> None:
        """An operation is ready: it starts, or waits for its resource."""
        if self._in_turn and self._kind[position] in (DOWN, UP):
            self._send(worker, position, now)
            return
        if self._kind[position] == DELAY:
            seconds = self._durations[self._drawn[worker][len(self._ends[worker])]][position]
            self._delay(worker, position, now, now + seconds)
            return
        resource = (worker, self._kind[position], self._server[position])
        ready = self._ready.setdefault(resource, deque())
        if resource[1] == WORKER:
            bisect.insort(ready, position)
        else:
            ready.append(position)
        if resource not in self._running:
            self._start_next(resource, now)

    def _start_next(self, resource: tuple[int, int, int], now: float) -> None:
        ready = self._ready.get(resource)
        if not ready:
            return
        position = ready.popleft()
        self._running[resource] = (position, now)
        worker, kind, server = resource
        if kind in (DOWN, UP):
            self._start_transfer(worker, kind, server, position, now)
            return
        seconds = self._durations[self._drawn[worker][len(self._ends[worker])]][position]
        if kind == WORKER:
            self._note(worker, now)
            self._computes[worker] = True
            seconds *= self._worker_slowness[worker]
        else:
            seconds *= self._server_slowness[server]
            self._record.serving_s[server] += seconds
        heapq.heappush(self._events, (now + seconds, kind, worker, server, 0))

    def _start_transfer(self, worker: int, kind: int, server: int, position: int, now: float) -> None:
        size = self._rest.get((worker, position))
        if size is None:  # its first service
            total = self._bytes[position]
            size = min(total, self._window)
            self._rest[worker, position] = total - size
        else:
            self._rest[worker, position] = 0.0
        self._note(worker, now)
        self._transfers[worker] += 1
        self._advance(kind, now)
        link, connection = self._links[kind], worker * self._num_servers + server
        bisect.insort(link.active, connection)
        link.left[connection] = size
        link.is_changed = True

    def _end_chunk(self, resource: tuple[int, int, int], now: float) -> None:
        worker, kind, server = resource
        position, began = self._running[resource]
        if self._observe:
            self._observe(Chunk(worker, len(self._ends[worker]), position, began, now))
        if kind in (DOWN, UP):
            link, connection = self._links[kind], worker * self._num_servers + server
            self._note(worker, now)
            self._transfers[worker] -= 1
            self._record.bytes_moved[kind, server] += link.left.pop(connection)  # what rounding has left
            link.active.remove(connection)
            if self._rest[worker, position] > 0.0:
                self._ready[resource].append(position)
            else:
                del self._rest[worker, position]
                self._complete(worker, position, now)
        else:
            if kind == WORKER:
                self._note(worker, now)
                self._computes[worker] = False
            self._complete(worker, position, now)
        del self._running[resource]
        self._start_next(resource, now)
        self._end_step_if_done(worker, now)

    def _end_step_if_done(self, worker: int, now: float) -> None:
        if not self._open[worker]:
            self._ends[worker].append(now)
            if len(self._ends[worker]) < self._num_steps:
                self._start_step(worker, now)

    def _delay(self, worker: int, position: int, now: float, until: float) -> None:
        heapq.heappush(self._events, (until, DELAY, len(self._delays), 0, 0))
        self._delays.append((worker, position, now))

    def _end_delay(self, number: int, now: float) -> None:
        worker, position, began = self._delays[number]
        if position == _START:
            self._start_step(worker, now)
            return
        if self._observe:
            self._observe(Chunk(worker, len(self._ends[worker]), position, began, now))
        self._complete(worker, position, now)
        self._end_step_if_done(worker, now)

    def _send(self, worker: int, position: int, now: float) -> None:
        """A transfer in turn is ready: it starts when its sender's link is free."""
        kind = self._kind[position]
        self._note(worker, now)
        self._transfers[worker] += 1
        transfer = Transfer(worker, self._server[position], position, self._bytes[position])
        starts = self._turns[kind].leave(transfer, now)
        heapq.heappush(self._events, (starts, kind, len(self._sent), 0, 0))
        self._sent.append(transfer)

    def _carry(self, kind: int, number: int, now: float) -> None:
        """A transfer in turn starts, or has arrived."""
        transfer, links = self._sent[number], self._turns[kind]
        if not transfer.has_begun:
            heapq.heappush(self._events, (links.begin(transfer), kind, number, 0, 0))
            return
        worker, position = transfer.worker, transfer.position
        if self._observe:
            self._observe(Chunk(worker, len(self._ends[worker]), position, transfer.starts_s, now))
        self._note(worker, now)
        self._transfers[worker] -= 1
        self._record.bytes_moved[kind, transfer.server] += transfer.num_bytes
        self._record.busy_s[kind, transfer.server] += links.busy_s(transfer)
        self._complete(worker, position, now)
        self._end_step_if_done(worker, now)

    def _complete(self, worker: int, position: int, now: float) -> None:
        self._open[worker] -= 1
        waits = self._waits[worker]
        for dependent in self._dependents[position]:
            waits[dependent] -= 1
            if not waits[dependent]:
                self._add(worker, dependent, now)

    def _note(self, worker: int, now: float) -> None:
        """Book what the worker has done since its last change."""
        passed = now - self._since[worker]
        self._since[worker] = now
        if self._computes[worker]:
            self._record.computing_s[worker] += passed
        if self._transfers[worker]:
            self._record.communicating_s[worker] += passed
            if not self._computes[worker]:
                self._record.exposed_s[worker] += passed

    def _advance(self, kind: int, now: float) -> None:
        """Move what the transfers of a direction have carried since their shares were set."""
        link = self._links[kind]
        passed = now - link.at_s
        link.at_s = now
        if not passed:
            return
        moved_to, busy = self._record.bytes_moved[kind], self._record.busy_s[kind]
        for server in {connection % self._num_servers for connection in link.active}:
            busy[server] += passed
        for connection in link.active:
            moved = min(link.left[connection], link.rates[connection] * passed)
            link.left[connection] -= moved
            moved_to[connection % self._num_servers] += moved

    def _plan_links(self, now: float) -> None:
        """Share a direction anew if its transfers have changed, and find the one that ends next."""
        for kind, link in enumerate(self._links):
            if not link.is_changed:
                continue
            link.is_changed = False
            link.version += 1
            if not link.active:
                continue
            if link.active != link.shared:
                link.shared = list(link.active)
                pairs = [divmod(connection, self._num_servers) for connection in link.active]
                shares = max_min_shares(pairs, *self._limits[kind])
                link.rates = dict(zip(link.active, shares, strict=True))
            link.ends_next = min(link.active, key=lambda c: link.left[c] / link.rates[c])
            ends = now + link.left[link.ends_next] / link.rates[link.ends_next]
            heapq.heappush(self._events, (ends, kind, 0, 0, link.version))


def replay_in_python(
    program: Program,
    record: ReplayArrays,
    observe: Callable[[Chunk], None] | None = None,
    stop: Stop | None = None,
) -> None:
    """Replay until the first worker has done its steps.

    Args:
        record: empty; is filled in.
        observe: is called with every chunk at its end.
        stop: ends the replay early; None: nothing does.

    Raises:
        ValueError: a time is no finite number.
        KeyboardInterrupt: the replay was stopped.
    """
    assert DELAY > SERVER > WORKER > UP > DOWN  # the order of events at the same time
    PythonReplay(program, record, observe, Stop() if stop is None else stop).run()
