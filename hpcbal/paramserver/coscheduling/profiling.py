"""Measure the iterations of a job on its machines ([PS] Sec. 4.3.2, Profiling).

The paper takes moving averages of all times. Subtasks of one machine wait for each other, but those of other
machines may use the same links, which makes some pulls and pushes longer and none shorter. So of the network
times the least of the last iterations counts.
"""

from __future__ import annotations

import math
import statistics
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Protocol

from hpcbal.paramserver.master.messages import TurnDone
from hpcbal.policies.grouping.groups import UNKNOWN_LOADING_S, JobLoad

WINDOW = 8
"""Iterations that an average is taken of."""

LONG_S = 60.0
"""An iteration that computes and communicates for so long is not repeated just to be measured: delays of
seconds hardly count in it."""


@dataclass(frozen=True, slots=True)
class IterationTimes:
    """The times and bytes of the last iterations.

    Attributes:
        compute_s: of the CPU subtask of the slowest worker.
        network_s: of the network subtasks: the pull of the slowest worker, and the push of the slowest.
        num_bytes: that a worker pulls and pushes.
    """

    compute_s: float
    network_s: float
    num_bytes: float


def load_of(
    name: str,
    measured: IterationTimes,
    *,
    machines: int,
    data_blocks: int | None,
    parameter_blocks: int | None,
    iterations_left: float,
    dense_bytes: float,
    row_growth: float,
    loading_s: float | None,
    saving_s: float | None,
) -> JobLoad:
    """Return the load of a job for the scheduler.

    Args:
        name: of the job.
        measured: average of its last iterations.
        machines: that it has.
        data_blocks, parameter_blocks, iterations_left, row_growth: see `JobLoad`.
        dense_bytes: of its dense tables.
        loading_s: from its start until it could take its first turn; None: it cannot yet.
        saving_s: of its last checkpoint in this start; None: there was none.
    """
    moved = 2 * dense_bytes * (1 - 1 / machines)
    return JobLoad(
        name=name,
        compute_s=measured.compute_s,
        network_s=measured.network_s,
        machines=machines,
        data_blocks=data_blocks,
        parameter_blocks=parameter_blocks,
        iterations_left=iterations_left,
        dense_share=min(1.0, moved / measured.num_bytes) if measured.num_bytes else 1.0,
        row_growth=row_growth,
        loading_s=UNKNOWN_LOADING_S if loading_s is None else loading_s,
        saving_s=saving_s or 0.0,
    )


class IterationMeter:
    """Averages of a job from its start on some machines until it leaves them.

    Args:
        workers: ranks that take turns.
        warm_up: iterations that are not measured.

    Attributes:
        num_measured: iterations so far.
        periods: seconds from one iteration to the next, with all that it waits for others: of the last
            iterations in which nobody did anything else.
        num_periods: of them so far.
    """

    def __init__(self, workers: Iterable[int], warm_up: int) -> None:
        self._workers = frozenset(workers)
        self._skip = warm_up
        self._step = -1
        self._turns: dict[int, TurnDone] = {}
        self._ended_s: float | None = None
        self._window: deque[IterationTimes] = deque(maxlen=WINDOW)
        self._disturbed_s = -math.inf
        self.num_measured = self.num_periods = 0
        self.periods: deque[float] = deque(maxlen=WINDOW)
        self._has_long = False

    @property
    def is_warm(self) -> bool:
        """Whether the next iteration is measured."""
        return not self._skip and self._ended_s is not None

    def disturb(self, now_s: float) -> None:
        """Somebody on the machines does something else than iterations, such as an objective or a start."""
        self._disturbed_s = now_s

    def note(self, worker: int, turn: TurnDone, now_s: float) -> bool:
        """A worker has taken its turn; returns whether that ended an iteration that is measured."""
        if turn.step != self._step:
            self._step, self._turns = turn.step, {}
        self._turns[worker] = turn
        if self._turns.keys() != self._workers:
            return False
        began_s, self._ended_s = self._ended_s, now_s
        if self._skip or began_s is None:
            self._skip = max(0, self._skip - 1)
            return False
        turns = self._turns.values()
        measured = IterationTimes(
            max(each.compute_s for each in turns),
            max(each.pull_s for each in turns) + max(each.push_s for each in turns),
            sum(each.num_bytes for each in turns) / len(turns),
        )
        self._window.append(measured)
        self.num_measured += 1
        if began_s >= self._disturbed_s:
            self.periods.append(now_s - began_s)
            self.num_periods += 1
        self._has_long |= measured.compute_s + measured.network_s >= LONG_S
        return True

    def suffices(self, profile_iterations: int) -> bool:
        """Whether enough has been measured to group the job by it.

        Args:
            profile_iterations: that are wanted, >= 1; one suffices if it takes `LONG_S`.
        """
        return self.num_measured >= profile_iterations or self._has_long

    @property
    def average(self) -> IterationTimes | None:
        """Average of the last iterations; None: none has been measured."""
        if not self._window:
            return None
        count = len(self._window)
        return IterationTimes(
            sum(each.compute_s for each in self._window) / count,
            min(each.network_s for each in self._window),
            sum(each.num_bytes for each in self._window) / count,
        )


LEAST_ITERATIONS = 4
"""Iterations of each job of a group after which the group counts as measured."""


def measured_iteration_s(jobs: Iterable[tuple[IterationMeter, int]]) -> float | None:
    """Return the seconds from one iteration to the next of the slowest job of a group, mean of the last ones.

    Only those count beside which no job on its machines did anything else, as in predictions.

    Args:
        jobs: of each job of the group, its meter, and the periods that it had measured before.

    Returns: None if a job has had fewer than `LEAST_ITERATIONS` of them since.
    """
    found = []
    for meter, before in jobs:
        count = min(meter.num_periods - before, WINDOW)
        if count < LEAST_ITERATIONS:
            return None
        found.append(statistics.mean(list(meter.periods)[-count:]))
    return max(found)


class OnMachines(Protocol):
    """A job that shares machines with others.

    Attributes:
        ranks: of its machines.
        meter: measures its iterations.
    """

    @property
    def ranks(self) -> tuple[int, ...]: ...

    @property
    def meter(self) -> IterationMeter: ...

    @property
    def is_iterating(self) -> bool:
        """Whether its workers do nothing but take turns, whose times are measured."""


def note_disturbance(job: OnMachines, running: Iterable[OnMachines], now_s: float) -> None:
    """Note what makes iterations longer than they are predicted: starts, objectives, checkpoints.

    Args:
        job: the job that sent a message.
        running: all jobs, among them this one.
    """
    ranks = frozenset(job.ranks)
    sharing = [other for other in running if not ranks.isdisjoint(other.ranks)]
    if not job.is_iterating:
        for other in sharing:
            other.meter.disturb(now_s)
    elif not all(other.is_iterating for other in sharing):
        job.meter.disturb(now_s)
