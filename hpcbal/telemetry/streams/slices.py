"""Record how a rank spends its time, as slices; few enough that recording them costs nothing."""

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
PULL = "pull"
SERVE = "serve"
MARK = "mark"
"""A moment that rank 0 adds to the track of a rank, independent of the rank's slices."""

DETAIL = frozenset({COMPUTE, WAIT, REDUCE, PREPROCESS, PULL, SERVE})
"""Kinds that occur in every step; the others occur a few times per pass."""

SHOWN_WAIT_S = 1e-4
"""Shorter waits for a batch get no slice and are only summed up."""

SEND_INTERVAL_S = 2.0
MAX_WAITING = 400
"""Most slices of one rank in one interval; further slices are dropped."""

MAX_DETAIL_PER_S = 5000
"""Most slices of DETAIL per second over all ranks: rank 0 takes 8 microseconds for each, 4 % of its time."""


@dataclass(frozen=True, slots=True)
class Slice:
    """A period in which a rank did one thing.

    Slices of one rank must follow each other or be nested, to the microsecond, because viewers drop slices
    that overlap in another way.

    Attributes:
        kind: COMPUTE, WAIT, ...
        start_us, end_us: start and end, in microseconds of Unix time.
        name: the text to show; the kind if empty.
        facts: numbers and text to show when the slice is selected.
    """

    kind: str
    start_us: int
    end_us: int
    name: str = ""
    facts: Mapping[str, float | str] | None = None


class SliceRecorder:
    """Keeps the slices of this rank until they are sent. Times are those of `time.monotonic`.

    Args:
        steps_per_pass: number of steps of each pass that are recorded individually.
        num_ranks: number of ranks in the job, which share MAX_DETAIL_PER_S equally.
        enabled: whether anything is recorded at all.
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
        """Record a slice of `kind` from `began_s` to `ended_s`."""
        limit = self._max_detail if kind in DETAIL else MAX_WAITING
        if self._enabled and len(self._waiting) < limit:
            self._waiting.append(Slice(kind, self._unix_us(began_s), self._unix_us(ended_s), name, facts))

    @contextmanager
    def during(self, kind: str, name: str = "") -> Iterator[None]:
        """Record the time of the body as a slice, also if it raises."""
        began_s = time.monotonic()
        try:
            yield
        finally:
            self.add(kind, began_s, time.monotonic(), name)

    def take_due(self) -> tuple[Slice, ...]:
        """Return the recorded slices if it is time to send them, otherwise nothing."""
        if not self._waiting or time.monotonic() < self._due_s:
            return ()
        return self.take()

    def take(self) -> tuple[Slice, ...]:
        """Return all recorded slices."""
        self._due_s = time.monotonic() + SEND_INTERVAL_S
        taken, self._waiting = tuple(self._waiting), []
        return taken

    def _unix_us(self, moment_s: float) -> int:
        return int((moment_s + self._to_unix_s) * 1e6)  # never swaps two moments


def mark(name: str, facts: Mapping[str, float | str]) -> Slice:
    """A mark at the current time."""
    now_us = int(time.time() * 1e6)
    return Slice(MARK, now_us, now_us, name, facts)


class StepTrace:
    """Records the steps of one pass: the first few individually, and all of them in the slice of the pass.

    Args:
        dnn: name of the DNN in training.
        pass_index: index of the pass in the shared stream.
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
        """Record a step that has just ended.

        Args:
            wait_s: seconds of waiting for its batch, right after the previous step.
            began_s: when the step itself began.
            reduce_began_s, reduce_ended_s: start and end of its all-reduce; equal if there was none.
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

    def end(self) -> float:
        """Record the end of the pass, complete or not; return its seconds."""
        facts = {"steps": self._num_steps, "wait_for_data_s": self._wait_s, "all_reduce_s": self._reduce_s}
        name = f"{self._dnn} pass {self._pass_index}"
        ended_s = time.monotonic()
        self._recorder.add("pass", self._began_s, ended_s, name, facts)
        return ended_s - self._began_s


class BusyTrace:
    """Joins many short pieces of work into slices: pauses shorter than `PAUSE_S` are not shown."""

    PAUSE_S = 0.02
    LONGEST_S = 1.0

    def __init__(self, recorder: SliceRecorder, kind: str) -> None:
        self._recorder = recorder
        self._kind = kind
        self._began_s: float | None = None
        self._last_s = self._worked_s = time.monotonic()

    def note(self, worked: bool) -> None:
        """Record whether the rank has worked since the last call."""
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
        """Record the current slice, if there is one."""
        if self._began_s is not None:
            self._recorder.add(self._kind, self._began_s, self._worked_s)
            self._began_s = None
