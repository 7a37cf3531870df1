"""The scheduler in a thread of its own: jobs go on while it groups others.

All pulls and pushes wait for a word of the master, and so does every step. Grouping thousands of jobs takes
seconds, for which all of them would stand still.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass

from hpcbal.paramserver.sharing.scheduler import Event, Instruction, Scheduler
from hpcbal.policies.grouping import JobLoad


@dataclass(frozen=True, slots=True)
class Decision:
    """What is to be done after an event.

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

    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler = scheduler
        self._thread = ThreadPoolExecutor(1, "decide")
        self._asked: deque[Future[Decision]] = deque()

    def ask(self, event: Event) -> None:
        """Something has happened."""
        self._asked.append(self._thread.submit(self._decide, event, time.monotonic()))

    def take(self) -> Decision | None:
        """The next decision; None: there is none yet. Raises what the scheduler has raised."""
        return self._asked.popleft().result() if self._asked and self._asked[0].done() else None

    def close(self) -> None:
        """Forget all events; the process ends after a decision that is under way."""
        self._asked.clear()
        self._thread.shutdown(wait=False, cancel_futures=True)

    def _decide(self, event: Event, happened_s: float) -> Decision:
        began_s = time.monotonic()
        instructions = self._scheduler.handle(event, happened_s)
        loads = self._scheduler.loads if instructions else {}
        return Decision(instructions, loads, time.monotonic() - began_s)
