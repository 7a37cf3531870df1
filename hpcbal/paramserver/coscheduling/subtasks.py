"""The queues of one machine: whose subtask uses a resource and whose is next; asking for the network.

Source: [PS] Sec. 4.3.1. The paper does not say in which order subtasks wait. Here they wait in the order of
tickets, which a machine gives out as the master allows steps. All machines hear of the steps in the same
order, so on all of them the same job comes first. Otherwise two jobs could wait for each other's half of a
step.
"""

from __future__ import annotations

import heapq
from dataclasses import dataclass

from hpcbal.comm.channel import Message
from hpcbal.paramserver.master.messages import Evaluate, Initialise, MayStart


class SubtaskQueue:
    """Who uses one resource of a machine.

    Args:
        places: subtasks that may use it at a time, >= 1.

    Attributes:
        running: jobs whose subtasks use it, in the order in which they began.
        numbers: of each job that has used it, the number of its last subtask: all are counted together.
    """

    def __init__(self, places: int = 1) -> None:
        self._places = places
        self.running: list[str] = []
        self.numbers: dict[str, int] = {}
        self._num_begun = 0
        self._waiting: list[tuple[int, str]] = []

    @property
    def num_waiting(self) -> int:
        return len(self._waiting)

    def ask(self, job: str, ticket: int) -> list[str]:
        """A job's next subtask wants to run. Returns the jobs whose subtasks begin now.

        Raises:
            ValueError: the job already waits or runs: its subtasks follow each other.
        """
        if job in self.running or any(job == other for _, other in self._waiting):
            raise ValueError(f"job {job} asks again while its subtask waits or runs")
        heapq.heappush(self._waiting, (ticket, job))
        return self._begin()

    def leave(self, job: str) -> list[str]:
        """The subtask of a job is over, or it no longer wants to run. Returns the jobs that begin now."""
        if job in self.running:
            self.running.remove(job)
        else:
            self._waiting = [entry for entry in self._waiting if entry[1] != job]
            heapq.heapify(self._waiting)
        return self._begin()

    def _begin(self) -> list[str]:
        begun = []
        while self._waiting and len(self.running) < self._places:
            begun.append(heapq.heappop(self._waiting)[1])
            self.running.append(begun[-1])
            self._num_begun += 1
            self.numbers[begun[-1]] = self._num_begun
        return begun


WITH_TICKET = (Initialise, MayStart, Evaluate)
"""Messages that let subtasks begin: a machine gives the job a ticket when one comes; see `subtasks`."""


@dataclass(frozen=True, slots=True)
class AskForNetwork(Message):
    """Worker -> scheduler: the pull or the push of its turn is next.

    Attributes:
        step: of the turn.
    """

    step: int


@dataclass(frozen=True, slots=True)
class UseNetwork(Message):
    """Scheduler -> all workers of a job that asked: begin."""


@dataclass(frozen=True, slots=True)
class NetworkUsed(Message):
    """Worker -> scheduler: the pull is answered, or the push is applied."""
