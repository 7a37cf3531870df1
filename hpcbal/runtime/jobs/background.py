"""Load jobs that have arrived, in the background of rank 0."""

from __future__ import annotations

import sys
import threading
import time
import traceback
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Generic, TypeVar

from hpcbal.paramserver.coscheduling.scheduler import Event, Instruction, JobScheduler
from hpcbal.paramserver.engine.rank_resources import in_thread
from hpcbal.policies.grouping.groups import JobLoad

T = TypeVar("T")

PATIENCE_S = 10.0
"""For this long a load holds up the next one, and jobs that are loaded wait for others to start together."""


@dataclass(eq=False)
class _Load(Generic[T]):
    """One load, and since when it runs."""

    began_s: float
    result: Future[T]
    is_slow: bool = False


class Loader(Generic[T]):
    """Loads one job after another; a load that is slow, or hangs in a user's code, keeps no other job out.

    Its threads do not keep the process alive.

    Args:
        load: loads the job of a name.
        note: gets a sentence about a load that is slow.
        clock: monotonic seconds, for tests.
    """

    def __init__(
        self,
        load: Callable[[str], T],
        note: Callable[[str], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._load, self._note, self._clock = load, note, clock
        self._waiting: deque[str] = deque()
        self._loads: dict[str, _Load[T]] = {}
        self._since_s: float | None = None  # jobs that are loaded have waited since

    def add(self, name: str) -> None:
        """Load a job when its turn has come."""
        self._waiting.append(name)

    def take(self) -> dict[str, Future[T]]:
        """Return the jobs that are to start now, with what `load` returned or raised; call this often."""
        now_s = self._clock()
        under_way = {name: load for name, load in self._loads.items() if not load.result.done()}
        for name, load in under_way.items():
            if not load.is_slow and now_s - load.began_s >= PATIENCE_S:
                load.is_slow = True
                self._note(f"job {name}: its data is still being opened; other jobs start without it")
        if self._waiting and all(load.is_slow for load in under_way.values()):
            self._begin(self._waiting.popleft(), now_s)
            return {}
        done = {name: load.result for name, load in self._loads.items() if name not in under_way}
        if not done:
            return {}
        self._since_s = now_s if self._since_s is None else self._since_s
        may_come = self._waiting or not all(load.is_slow for load in under_way.values())
        if may_come and now_s - self._since_s < PATIENCE_S:
            return {}
        self._since_s = None
        for name in done:
            del self._loads[name]
        return done

    def _begin(self, name: str, now_s: float) -> None:
        self._loads[name] = _Load(now_s, in_thread(lambda: self._load(name), f"load {name}"))


@dataclass(frozen=True, slots=True)
class SchedulingDecision:
    """A scheduler's instructions after an event.

    Attributes:
        instructions: in order.
        loads: of jobs, by which it was decided; empty if there is nothing to do.
        seconds: that it took.
    """

    instructions: Sequence[Instruction]
    loads: Mapping[str, JobLoad]
    seconds: float


class Decisions:
    """Hands events to a scheduler, and returns what it decides, both in order.

    A decision may come when a job that it stops has just ended.

    Args:
        scheduler: nobody else may use it.
    """

    def __init__(self, scheduler: JobScheduler) -> None:
        self._scheduler = scheduler
        self._thread = ThreadPoolExecutor(1, "decide")
        self._asked: deque[Future[SchedulingDecision]] = deque()

    def ask(self, event: Event) -> None:
        """Something has happened."""
        self._asked.append(self._thread.submit(self._decide, event, time.monotonic()))

    def take(self) -> SchedulingDecision | None:
        """The next decision; None: there is none yet. Raises what the scheduler has raised."""
        return self._asked.popleft().result() if self._asked and self._asked[0].done() else None

    def close(self) -> None:
        """Forget all events; the process ends after a decision that is under way."""
        self._asked.clear()
        self._thread.shutdown(wait=False, cancel_futures=True)

    def _decide(self, event: Event, happened_s: float) -> SchedulingDecision:
        began_s = time.monotonic()
        instructions = self._scheduler.handle(event, happened_s)
        loads = self._scheduler.loads if instructions else {}
        return SchedulingDecision(instructions, loads, time.monotonic() - began_s)


def stacks_of(name: str) -> str:
    """Return the stacks of all threads with this name."""
    frames = sys._current_frames()
    found = [frames.get(thread.ident or 0) for thread in threading.enumerate() if thread.name == name]
    return "\n".join("".join(traceback.format_stack(frame)) for frame in found if frame is not None)


class HangWatch:
    """Finds computations that take so long that they may hang.

    Args:
        timeout_s: the longest that one may take.
    """

    def __init__(self, timeout_s: float) -> None:
        self._timeout_s = timeout_s
        self._since: dict[str, tuple[int, float]] = {}  # of each job that computes: number of the subtask
        self._told: set[int] = set()

    def look(self, computing: Mapping[str, int], now_s: float) -> list[str]:
        """Return the jobs whose computation has taken too long, each computation once; call this often.

        Args:
            computing: number of the subtask of each job that computes now.
            now_s: monotonic seconds.
        """
        before, self._since = self._since, {}
        for job, number in computing.items():
            known = before.get(job)
            self._since[job] = (number, now_s) if known is None or known[0] != number else known
        late = {
            job: number
            for job, (number, since_s) in self._since.items()
            if now_s - since_s > self._timeout_s and number not in self._told
        }
        self._told.update(late.values())
        return list(late)
