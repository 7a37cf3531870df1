"""Record what an executor does, as slices of the run's timeline."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager

from hpcbal.paramserver.engine.executor import Executor
from hpcbal.paramserver.engine.trace import Trace
from hpcbal.telemetry.streams.slices import COMPUTE, PULL, SERVE, SHOWN_WAIT_S, BusyTrace, SliceRecorder


class SliceTrace(Trace):
    """Records the first turns of each epoch one by one, and all of them in the slice of the epoch.

    Args:
        slices: of this rank.
        job: name of the job.
    """

    def __init__(self, slices: SliceRecorder, job: str) -> None:
        self._slices, self._job = slices, job
        self._serving = BusyTrace(slices, SERVE)
        self._epoch = -1
        self._num_turns = 0
        self._began_s = self._ended_s = self._pull_s = self._compute_s = 0.0

    def turn(
        self,
        epoch: int,
        pull_began_s: float,
        compute_began_s: float,
        compute_ended_s: float,
        num_samples: int = 0,
    ) -> None:
        """See `Trace`."""
        if epoch != self._epoch:
            self._end_epoch()
            self._epoch, self._began_s = epoch, pull_began_s
        self._num_turns += 1
        self._pull_s += compute_began_s - pull_began_s
        self._compute_s += compute_ended_s - compute_began_s
        self._ended_s = compute_ended_s
        if self._num_turns > self._slices.steps_per_pass:
            return
        if compute_began_s - pull_began_s > SHOWN_WAIT_S:
            self._slices.add(PULL, pull_began_s, compute_began_s)
        self._slices.add(COMPUTE, compute_began_s, compute_ended_s)

    def during(self, kind: str) -> AbstractContextManager[None]:
        """See `Trace`."""
        return self._slices.during(kind)

    def end(self) -> None:
        """Record what has not ended."""
        self._end_epoch()
        self._serving.end()

    def poll_of(self, executor: Executor) -> Callable[[float], bool]:
        """A poll that records when an executor without samples answers requests.

        Pauses below 20 ms are not shown. A worker serves while it waits, which the slices of its turns show.
        """
        served, due_s = 0, 0.0

        def poll(now_s: float) -> bool:
            nonlocal served, due_s
            if now_s < due_s:
                return False
            due_s = now_s + BusyTrace.PAUSE_S / 4
            requests = executor.server.load.requests  # since its last report
            if executor.samples.cursors:
                self._serving.end()
            else:
                self._serving.note(requests not in (0, served))
            served = requests
            return False

        return poll

    def _end_epoch(self) -> None:
        if self._num_turns:
            facts = {"turns": self._num_turns, "pull_s": self._pull_s, "compute_s": self._compute_s}
            name = f"{self._job} epoch {self._epoch + 1}"
            self._slices.add("epoch", self._began_s, self._ended_s, name, facts)
        self._epoch, self._num_turns, self._pull_s, self._compute_s = -1, 0, 0.0, 0.0
