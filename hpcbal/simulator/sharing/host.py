"""Cores of the host that emulates all machines: what is not emulated shares them."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from functools import partial

from hpcbal.simulator.serving.clock import NS_PER_S, Clock
from hpcbal.simulator.serving.place import Waits

DONE_S = 1e-9
"""Left of work that is done; times are whole nanoseconds."""


class HostCores:
    """Work that is done at the same time shares the cores evenly; each takes one of them at most.

    Args:
        clock: of the simulation.
        cores: > 0; infinite: each has one for itself.
    """

    def __init__(self, clock: Clock, cores: float) -> None:
        self._clock, self._cores = clock, cores
        self._left_s: dict[int, float] = {}
        self._looks: dict[int, Callable[[], None]] = {}
        self._numbers = itertools.count()
        self._since_s = 0.0
        self._change = 0

    def work(self, seconds: float, look: Callable[[], None]) -> Waits:
        """Work that takes so long on a core of its own.

        Args:
            seconds: >= 0.
            look: called when it may be done.
        """
        if not seconds:
            return
        number = next(self._numbers)
        self._advance()
        self._left_s[number], self._looks[number] = seconds, look
        self._look_ahead()
        yield lambda: number not in self._left_s

    @property
    def _speed(self) -> float:
        """Of each work that goes on."""
        return min(1.0, self._cores / len(self._left_s))

    def _advance(self) -> None:
        now_s = self._clock.now_s
        if self._left_s:
            done_s = (now_s - self._since_s) * self._speed
            self._left_s = {number: left_s - done_s for number, left_s in self._left_s.items()}
        self._since_s = now_s

    def _look_ahead(self) -> None:
        self._change += 1
        if self._left_s:
            wait_s = max(0.0, min(self._left_s.values())) / self._speed
            due_ns = self._clock.now_ns + math.ceil(wait_s * NS_PER_S)
            self._clock.at(due_ns, partial(self._end, self._change))

    def _end(self, change: int) -> None:
        if change != self._change:
            return  # work has come in between
        self._advance()
        over = [number for number, left_s in self._left_s.items() if left_s <= DONE_S]
        looks = [self._looks.pop(number) for number in over]
        for number in over:
            del self._left_s[number]
        self._look_ahead()
        for look in looks:
            look()
