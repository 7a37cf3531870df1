"""Virtual time: what happens next, and work that takes some of it."""

from __future__ import annotations

import heapq
import itertools
import math
import random
from collections.abc import Callable
from functools import partial

from hpcbal.paramserver.coscheduling.subtasks import EvenShares
from hpcbal.paramserver.worker.resources import Waits

NS_PER_S = 1e9


class Delay:
    """Delays from an exponential distribution: most are short, and a few take many times the mean.

    With delays that are never longer than twice their mean, ranks that begin together stay together. In real
    runs one is late now and then, and its request waits behind an answer that its machine has begun to send.

    Args:
        mean_s: >= 0.
        seed: of the draws; None: all are as long as the mean.
    """

    def __init__(self, mean_s: float, seed: str | None) -> None:
        self.mean_s = mean_s
        self._rng = None if seed is None else random.Random(seed)

    def draw_s(self) -> float:
        """The next one, in seconds."""
        if self._rng is None or not self.mean_s:
            return self.mean_s
        return self._rng.expovariate(1 / self.mean_s)


class Clock:
    """Calls actions at their times; those of one time in the order in which they were asked for.

    Attributes:
        now_ns: integer nanoseconds since the start, like the times of links.
    """

    def __init__(self) -> None:
        self.now_ns = 0
        self._queue: list[tuple[int, int, Callable[[], None]]] = []
        self._order = itertools.count()

    @property
    def now_s(self) -> float:
        """Seconds since the start."""
        return self.now_ns / NS_PER_S

    def at(self, time_ns: int, action: Callable[[], None]) -> None:
        """Call an action at a time that is not over."""
        heapq.heappush(self._queue, (max(time_ns, self.now_ns), next(self._order), action))

    def after(self, delay_s: float, action: Callable[[], None]) -> None:
        """Call an action in a while."""
        self.at(self.now_ns + round(delay_s * NS_PER_S), action)

    def run(self, is_over: Callable[[], bool]) -> None:
        """Let time pass until `is_over`, or until nothing is left to happen."""
        while self._queue and not is_over():
            self.now_ns, _, action = heapq.heappop(self._queue)
            action()


def sleep(clock: Clock, look: Callable[[], None], seconds: float) -> Waits[None]:
    """Let so much time pass, >= 0; `look` is called when it is over."""
    if not seconds:
        return
    until_ns = clock.now_ns + round(seconds * NS_PER_S)
    clock.at(until_ns, look)
    yield lambda: clock.now_ns >= until_ns


DONE_NS = 0.5
"""Left of work that is over; times are whole nanoseconds."""


class Cores:
    """Cores in virtual time: work that is done at the same time shares them evenly.

    Args:
        clock: of the simulation.
        cores: > 0, of which each work takes one at most; infinite: each has one for itself.
    """

    def __init__(self, clock: Clock, cores: float = 1.0) -> None:
        self._clock, self._shares = clock, EvenShares(cores)
        self._looks: dict[str, Callable[[], None]] = {}
        self._look = 0

    def work(self, name: str, seconds: float, look: Callable[[], None]) -> Waits[float]:
        """Work; returns how long it takes.

        Args:
            name: of the work, unique at a time.
            seconds: >= 0, on a core of its own.
            look: called when it is over.
        """
        if not seconds:
            return 0.0
        start_ns = self._clock.now_ns
        self.start(name, seconds, look)
        yield lambda: name not in self._looks
        return (self._clock.now_ns - start_ns) / NS_PER_S

    def start(self, name: str, seconds: float, over: Callable[[], None]) -> None:
        """Begin work that takes some time; `over` is called at its end."""
        self._shares.advance(self._clock.now_ns)
        self._shares.left[name], self._looks[name] = seconds * NS_PER_S, over
        self._look_ahead()

    def _look_ahead(self) -> None:
        """Look again when the next work is over."""
        self._look += 1
        shares = self._shares
        if shares.left:
            delay_ns = math.ceil(max(0.0, shares.until_next_end - DONE_NS / 2 / shares.speed))
            self._clock.at(self._clock.now_ns + delay_ns, partial(self._end, self._look))

    def _end(self, look: int) -> None:
        if look != self._look:
            return  # work has come in between
        self._shares.advance(self._clock.now_ns)
        over = [name for name, left_ns in self._shares.left.items() if left_ns <= DONE_NS]
        looks = [self._looks.pop(name) for name in over]
        for name in over:
            del self._shares.left[name]
        self._look_ahead()
        for hear in looks:
            hear()
