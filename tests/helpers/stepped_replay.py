"""A replay of forecasts that advances in small equal steps of time: slow, blunt, and written on its own."""

from __future__ import annotations

from hpcbal.forecast.trace import Resource, Trace

Place = Resource | int
"""Where an operation runs; a delay has a place of its own, its position."""


def ends_by_stepping(
    trace: Trace, num_workers: int, bytes_per_s: float, num_steps: int, window_bytes: float, tick_s: float
) -> list[list[float]]:
    """When each step of each worker ended; one server, one recorded step. Chunks end up to a tick late."""
    workers = [_Worker(trace, window_bytes) for _ in range(num_workers)]
    ticks = 0
    while all(len(worker.ends) < num_steps for worker in workers):
        ticks += 1
        users: dict[Place, int] = {
            resource: sum(resource in worker.running for worker in workers) for resource in Resource
        }
        for worker in workers:
            for place in worker.running:
                is_link = isinstance(place, Resource) and place.is_link
                worker.running[place] -= tick_s * (bytes_per_s / users[place] if is_link else 1.0)
        for worker in workers:
            worker.finish(ticks * tick_s)
    return [worker.ends for worker in workers]


class _Worker:
    """One worker: what waits for each resource, and what is left of the chunk that runs in each place."""

    def __init__(self, trace: Trace, window_bytes: float) -> None:
        self._operations, self._durations = trace.operations, trace.durations_s[0].tolist()
        self._window = window_bytes
        self.ends: list[float] = []
        self._begin()

    def _begin(self) -> None:
        self.running: dict[Place, float] = {}  # -> seconds or bytes left
        self._positions: dict[Place, int] = {}
        self._queues: dict[Resource, list[int]] = {resource: [] for resource in Resource}
        self._rest: dict[int, float] = {}  # bytes after the pause, of transfers that were served once
        self._done: set[int] = set()
        self._asked: set[int] = set()
        downlinks = [i for i, each in enumerate(self._operations) if each.resource is Resource.DOWNLINK]
        self._ask([*downlinks, *range(len(self._operations))])
        self._serve()

    def _ask(self, order: list[int]) -> None:
        for position in order:
            operation = self._operations[position]
            if position not in self._asked and self._done.issuperset(operation.waits_for):
                self._asked.add(position)
                self._queues[operation.resource].append(position)

    def _serve(self) -> None:
        for position in self._queues[Resource.DELAY]:
            self._positions[position] = position
            self.running[position] = self._durations[position]
        self._queues[Resource.DELAY].clear()
        for resource, queue in self._queues.items():
            if resource in self.running or not queue:
                continue
            position = self._positions[resource] = queue.pop(0)
            if not resource.is_link:
                self.running[resource] = self._durations[position]
                continue
            num_bytes = float(self._operations[position].num_bytes)
            chunk = self._rest.get(position, min(num_bytes, self._window))
            self._rest[position] = 0.0 if position in self._rest else num_bytes - chunk
            self.running[resource] = chunk

    def finish(self, now: float) -> None:
        """Take what has ended from its resource, and start what can start."""
        for place in [each for each, left in self.running.items() if left <= 1e-9]:
            position = self._positions[place]
            del self.running[place]
            if self._rest.get(position, 0.0) > 0.0:
                self._queues[self._operations[position].resource].append(position)
            else:
                self._done.add(position)
                self._ask(list(range(len(self._operations))))
        if len(self._done) == len(self._operations):
            self.ends.append(now)
            self._begin()
        else:
            self._serve()
