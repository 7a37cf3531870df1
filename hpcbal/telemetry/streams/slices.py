"""What a rank notes of its own time: short slices, few enough that noting them costs nothing."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass

COMPUTE = "compute"
WAIT = "wait for data"
REDUCE = "all-reduce"
PREPROCESS = "preprocess"
CHECKPOINT = "checkpoint"
MARK = "mark"
"""A moment that rank 0 notes on the track of a rank, whatever the rank is doing then."""

DETAIL = frozenset({COMPUTE, WAIT, REDUCE, PREPROCESS})
"""Kinds that come by the step; the others come a few times per pass."""

SHOWN_WAIT_S = 1e-4
"""Shorter waits for a batch are only summed up."""

SEND_INTERVAL_S = 2.0
MAX_WAITING = 400
"""Slices of one rank in one interval; more are dropped."""

MAX_DETAIL_PER_S = 5000
"""Slices of DETAIL of all ranks together: rank 0 takes 8 microseconds for each, so 4 % of its time."""


@dataclass(frozen=True, slots=True)
class Slice:
    """Something that a rank did for a while.

    Slices of one rank lie one behind the other or one inside the other, to the microsecond: viewers drop what
    overlaps otherwise.

    Attributes:
        kind: COMPUTE, WAIT, ...
        start_us, end_us: when, in microseconds of unix time.
        name: what is shown; the kind if empty.
        facts: numbers and words shown when it is selected.
    """

    kind: str
    start_us: int
    end_us: int
    name: str = ""
    facts: Mapping[str, float | str] | None = None


class SliceRecorder:
    """Keeps the slices of this rank until they are sent. Times are those of `time.monotonic`.

    Args:
        steps_per_pass: so many steps of each pass are noted one by one.
        num_ranks: of the job; each gets the same part of MAX_DETAIL_PER_S.
        enabled: whether anything is noted at all.
    """

    def __init__(self, steps_per_pass: int, *, num_ranks: int = 1, enabled: bool = True) -> None:
        self.steps_per_pass = steps_per_pass if enabled else 0
        self._enabled = enabled
        self._max_detail = min(MAX_WAITING // 2, int(MAX_DETAIL_PER_S * SEND_INTERVAL_S / num_ranks))
        self._to_unix_s = time.time() - time.monotonic()
        self._waiting: list[Slice] = []
        self._due_s = time.monotonic() + SEND_INTERVAL_S

    def add(
        self,
        kind: str,
        began_s: float,
        ended_s: float,
        name: str = "",
        facts: Mapping[str, float | str] | None = None,
    ) -> None:
        """Note that something of `kind` went on from `began_s` to `ended_s`."""
        limit = self._max_detail if kind in DETAIL else MAX_WAITING
        if self._enabled and len(self._waiting) < limit:
            self._waiting.append(Slice(kind, self._unix_us(began_s), self._unix_us(ended_s), name, facts))

    @contextmanager
    def during(self, kind: str, name: str = "") -> Iterator[None]:
        """Note the time that the body takes, also when it raises."""
        began_s = time.monotonic()
        try:
            yield
        finally:
            self.add(kind, began_s, time.monotonic(), name)

    def take_due(self) -> tuple[Slice, ...]:
        """What waits, if it is time to send it; else nothing."""
        if not self._waiting or time.monotonic() < self._due_s:
            return ()
        return self.take()

    def take(self) -> tuple[Slice, ...]:
        """All that waits."""
        self._due_s = time.monotonic() + SEND_INTERVAL_S
        taken, self._waiting = tuple(self._waiting), []
        return taken

    def _unix_us(self, moment_s: float) -> int:
        return int((moment_s + self._to_unix_s) * 1e6)  # never swaps two moments


def mark(name: str, facts: Mapping[str, float | str]) -> Slice:
    """A moment: now."""
    now_us = int(time.time() * 1e6)
    return Slice(MARK, now_us, now_us, name, facts)


class StepTrace:
    """The steps of one pass: the first few one by one, all of them in the pass's own slice.

    Args:
        dnn: that is trained.
        pass_index: of the shared stream.
    """

    def __init__(self, recorder: SliceRecorder, dnn: str, pass_index: int) -> None:
        self._recorder = recorder
        self._dnn = dnn
        self._pass_index = pass_index
        self._left = recorder.steps_per_pass
        self._began_s = self._last_s = time.monotonic()
        self._num_steps = 0
        self._wait_s = 0.0
        self._reduce_s = 0.0

    def step(self, wait_s: float, began_s: float, reduce_began_s: float, reduce_ended_s: float) -> None:
        """A step has just ended.

        Args:
            wait_s: seconds without a batch, right after the step before.
            began_s: when the step itself began.
            reduce_began_s, reduce_ended_s: its all-reduce; equal if there was none.
        """
        self._num_steps += 1
        self._wait_s += wait_s
        self._reduce_s += reduce_ended_s - reduce_began_s
        if self._left <= 0:
            return
        self._left -= 1
        add, now_s = self._recorder.add, time.monotonic()
        if wait_s > SHOWN_WAIT_S:
            add(WAIT, self._last_s, min(self._last_s + wait_s, began_s))
        if reduce_ended_s > reduce_began_s:
            add(COMPUTE, began_s, reduce_began_s)
            add(REDUCE, reduce_began_s, reduce_ended_s)
            add(COMPUTE, reduce_ended_s, now_s, "update")
        else:
            add(COMPUTE, began_s, now_s)
        self._last_s = now_s

    def end(self) -> None:
        """The pass is over, or was left."""
        facts = {"steps": self._num_steps, "wait_for_data_s": self._wait_s, "all_reduce_s": self._reduce_s}
        name = f"{self._dnn} pass {self._pass_index}"
        self._recorder.add("pass", self._began_s, time.monotonic(), name, facts)


class BusyTrace:
    """Turns many short pieces of work into slices: pauses shorter than `PAUSE_S` are not shown."""

    PAUSE_S = 0.02
    LONGEST_S = 1.0

    def __init__(self, recorder: SliceRecorder, kind: str) -> None:
        self._recorder = recorder
        self._kind = kind
        self._began_s: float | None = None
        self._last_s = self._worked_s = time.monotonic()

    def note(self, worked: bool) -> None:
        """Since the last call the rank has worked, or found nothing to do."""
        now_s = time.monotonic()
        if worked:
            if self._began_s is None:
                self._began_s = self._last_s
            self._worked_s = now_s
        self._last_s = now_s
        if self._began_s is not None and (
            now_s - self._worked_s > self.PAUSE_S or now_s - self._began_s > self.LONGEST_S
        ):
            self.end()

    def end(self) -> None:
        """Note what is under way."""
        if self._began_s is not None:
            self._recorder.add(self._kind, self._began_s, self._worked_s)
            self._began_s = None
