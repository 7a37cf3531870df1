"""End processes that ranks have started and that outlive them: mpirun waits for all that hold its pipes."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Collection
from pathlib import Path

from hpcbal.runtime.handoff.start_file import LAUNCH_DIR, StartFacts
from hpcbal.telemetry.host.processes import living_children, started_with

GRACE_S = 2.0
"""How long processes may outlive all ranks; helpers of Python's multiprocessing end by themselves."""

LINGER_S = 60.0
"""How long ranks may need to end after the run has; one may wait for a process that it has started."""


LOOK_INTERVAL_S = 0.5


class Leftovers:
    """Finds out that only leftovers keep mpirun running.

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

    def end(self, facts: StartFacts) -> str | None:
        """End leftovers if it is time to; returns a sentence about them, or None if there are none.

        Args:
            facts: the facts of the start so far.
        """
        now = time.monotonic()
        if now < self._look_at_s:
            return None
        self._look_at_s = now + LOOK_INTERVAL_S
        if facts.exit_code is not None and self._decided_s is None:
            self._decided_s = now
        ranks = living_children(self._mpirun)
        if ranks or ranks is None or not facts.is_ready:
            self._alone_s = None
        elif self._alone_s is None:
            self._alone_s = now
        is_alone = self._alone_s is not None and now - self._alone_s > GRACE_S
        if not is_alone and (self._decided_s is None or now - self._decided_s <= LINGER_S):
            return None
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
