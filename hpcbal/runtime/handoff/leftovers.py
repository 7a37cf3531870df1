"""Sentences on how the ranks of a start end, for each kind of start; and end what ranks leave behind."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path

from hpcbal.runtime.handoff.start_file import LAUNCH_DIR, StartFacts
from hpcbal.telemetry.resources.processes import living_children, started_with


@dataclass(frozen=True, slots=True)
class Sentences:
    """Sentences for people.

    Attributes:
        stopping: a stop was passed on to the ranks.
        killing: the ranks are killed on request.
        stopped: the ranks have stopped on request.
        killed: the ranks were killed on request.
        ended_by_signal: a rank was ended by a signal before it could stop.
        gone_with_mpirun: mpirun was killed, and the ranks have ended too.
        left_by_mpirun: mpirun was killed, and ranks may still be running.
        ended_while_stopping: the ranks ended on their way to a stop.
        ended_undecided: the ranks ended without a reason.
        died_early: what to do after a death while the ranks were starting.
        again: what to do after a death or another end.
        orphaned_s: how long ranks may go on after the end of their hpcbal, to end a step and to write state.
    """

    stopping: str
    killing: str
    stopped: str
    killed: str
    ended_by_signal: str
    gone_with_mpirun: str
    left_by_mpirun: str
    ended_while_stopping: str
    ended_undecided: str
    died_early: str
    again: str
    orphaned_s: float = 120.0


TRAINING = Sentences(
    stopping="stopping cleanly: writing checkpoints (Ctrl-C again to kill)",
    killing="killing the ranks; the last checkpoints stay",
    stopped="the ranks have written checkpoints and stopped; run the same command again to resume",
    killed=(
        "the ranks were killed before the run had written all checkpoints; run the same command again to "
        "resume from the last ones"
    ),
    ended_by_signal="a rank ended before it could write a checkpoint; run the same command again",
    gone_with_mpirun=(
        "the ranks have ended too, perhaps before they could write checkpoints; run the same command again "
        "to resume from the last checkpoints"
    ),
    left_by_mpirun=(
        "some ranks may still be running; they stop after their current step. Check with 'hpcbal status' "
        "that the run has stopped, then run the same command again"
    ),
    ended_while_stopping=(
        "the ranks were asked to stop, but ended perhaps before they could write checkpoints (mpirun kills "
        "them if it gets a signal); run the same command again to resume from the last checkpoints"
    ),
    ended_undecided=(
        "the ranks have ended, but the run has not: mpirun got a signal, or a process has ended itself, for "
        "example in a model; see the logs of the ranks, then run the same command again"
    ),
    died_early="Nothing was trained in this start; run the same command again",
    again="Run the same command again to resume from the last checkpoints",
)


def _of_one_result(
    verb: str, unit: str, result: str, nothing: str, done: str, place: str, orphaned_s: float
) -> Sentences:
    """Return the sentences of a verb that saves nothing before it writes its result."""
    again = f"{nothing} was written. Run the same command again"
    return Sentences(
        stopping=f"stopping the {verb} after the current {unit} (Ctrl-C again to kill)",
        killing=f"killing the ranks; {nothing} is written",
        stopped=f"the ranks have stopped; {again}",
        killed=f"the ranks were killed before the {result} was written; run the same command again",
        ended_by_signal=f"a rank ended before the {result} was written; run the same command again",
        gone_with_mpirun=f"the ranks have ended too; {again}",
        left_by_mpirun=f"some ranks may still be running; they stop after their current {unit}",
        ended_while_stopping=f"the ranks have ended; {again}",
        ended_undecided=(
            f"the ranks have ended, but the {verb} has not: mpirun got a signal, or a process has ended "
            f"itself, for example in {place}; see the logs of the ranks, then run the same command again"
        ),
        died_early=f"Nothing was {done}; run the same command again",
        again=f"{nothing.capitalize()} was written; run the same command again",
        orphaned_s=orphaned_s,
    )


PROFILING = _of_one_result("profiling run", "turn", "trace", "no trace", "recorded", "an app", 120.0)
EVALUATING = _of_one_result(
    "evaluation", "batch", "evaluation", "nothing", "evaluated", "a model", 10.0
)  # its ranks have nothing to save


GRACE_S = 2.0
"""How long processes may outlive all ranks; helpers of Python's multiprocessing end by themselves."""

LINGER_S = 60.0
"""How long ranks may need to end after the run has; one may wait for a process that it has started."""

STOPPED_LINGER_S = 6.0
"""The same if somebody has asked for a stop. Ranks need up to `LEAVE_S` of `ending`, and the whole stop takes
less than 10 s."""

LOOK_INTERVAL_S = 0.5


class Leftovers:
    """Finds out that only leftovers keep mpirun running, and ends leftovers.

    Args:
        mpirun: its process id; the ranks are its children.
        directory: the launch directory of this start.
    """

    def __init__(self, mpirun: int, directory: Path) -> None:
        self._mpirun = mpirun
        self._directory = directory
        self._look_at_s = 0.0
        self._alone_s: float | None = None
        self._decided_s: float | None = None
        self._stopped_s: float | None = None

    def end(self, facts: StartFacts, *, stop: bool = False) -> str | None:
        """End leftovers if it is time to; returns a sentence about them, or None if there are none.

        Args:
            facts: the facts of the start so far.
            stop: whether a signal has asked for a stop, before or after the exit code was decided.
        """
        now = time.monotonic()
        if now < self._look_at_s:
            return None
        self._look_at_s = now + LOOK_INTERVAL_S
        if facts.exit_code is not None and self._decided_s is None:
            self._decided_s = now
        if stop and self._decided_s is not None and self._stopped_s is None:
            self._stopped_s = now
        ranks = living_children(self._mpirun)
        if ranks or ranks is None or not facts.is_ready:
            self._alone_s = None
        elif self._alone_s is None:
            self._alone_s = now
        is_alone = self._alone_s is not None and now - self._alone_s > GRACE_S
        lingers = (self._decided_s, LINGER_S), (self._stopped_s, STOPPED_LINGER_S)
        is_late = any(since_s is not None and now - since_s > limit_s for since_s, limit_s in lingers)
        return self.kill() if is_alone or is_late else None

    def kill(self) -> str | None:
        """Kill all processes of the start but mpirun; returns a sentence about them, or None without any."""
        left = kill_started(self._directory, {self._mpirun})
        if not left:
            return None
        ids = ", ".join(str(pid) for pid in sorted(left))
        return f"killed what models or datasets had started and what outlived the run (process ids {ids})"


def kill_started(directory: Path, but: Collection[int] = ()) -> Collection[int]:
    """Kill all processes of a start; returns their ids.

    Args:
        directory: the launch directory of the start.
        but: ids of processes that stay.
    """
    found = started_with(LAUNCH_DIR, str(directory)).difference(but)
    for pid in found:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    return found
