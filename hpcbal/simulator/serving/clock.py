"""Virtual time: what happens next."""

from __future__ import annotations

import heapq
import itertools
import random
from collections.abc import Callable

NS_PER_S = 1e9


class Delay:
    """Delays from an exponential distribution: most are short, and a few take many times the mean.

    With delays that are never longer than twice their mean, ranks that begin together stay together. In real
    runs one is late now and then, and its request waits behind an answer that its machine has begun to send.

    Args:
        mean_s: >= 0.
        seed: of the draws.
    """

    def __init__(self, mean_s: float, seed: str) -> None:
        self.mean_s = mean_s
        self._rng = random.Random(seed)

    def draw_s(self) -> float:
        """The next one, in seconds."""
        return self._rng.expovariate(1 / self.mean_s) if self.mean_s else 0.0


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
