"""Replay a program in virtual time until it is stopped; `_replaying.c` does the same, to the last bit.

Each worker has 3 M + 1 queues, M being the number of servers: for each server the downlink, the uplink and
its computation for this worker, and the worker's own computation. A queue serves one operation at a time, in
the order in which they became ready; the worker's own computations that are ready go in the order of the
trace, in which they were recorded. All computations are events of their own; a direction of links has one
event, the end of the transfer that ends next. Events at the same time come in the order downlink, uplink,
workers, servers, delays; of workers and servers in the order of workers, of delays as they began. Delays
have no queue. A worker that starts later than at 0 has a delay before its first step.

Where links carry messages in turn, transfers have no queues of workers. Each has two events, its start and
its arrival; those at the same time come in the order in which the messages became ready.
"""

from __future__ import annotations

import bisect
import heapq
import math
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from hpcbal.forecast.cluster import LinksInTurn, Transfer, max_min_shares
from hpcbal.forecast.program import DELAY, DOWN, SERVER, UP, WORKER, Program, ReplayArrays


class Stop:
    """A flag that replays look at, in Python and in C.

    Attributes:
        flag: shape (1,); not 0 once it is set.
    """

    __slots__ = ("flag",)

    def __init__(self) -> None:
        self.flag = np.zeros(1, dtype=np.uint8)

    @property
    def is_set(self) -> bool:
        """Whether replays should end."""
        return bool(self.flag[0])

    def set(self) -> None:
        """Let all replays that have this flag raise KeyboardInterrupt soon."""
        self.flag[0] = 1


_START = -1
"""Instead of the operation of a delay: a worker starts."""


@dataclass(frozen=True, slots=True)
class Chunk:
    """A piece of work as it happened: part of a transfer, or an operation that computes or waits."""

    worker: int
    step: int
    operation: int
    begin_s: float
    end_s: float


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
