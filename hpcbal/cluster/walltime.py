"""When the allocation ends, and when a run must stop to save its work in time."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping

WALLTIME_MARGIN_S = 60.0


class WalltimeLimit:
    """Asks once for a clean stop, some time before the allocation ends.

    Args:
        end_s: end of the allocation, in seconds of the Unix epoch; None: never.
        margin_s: time that a clean stop may take.
    """

    def __init__(self, end_s: float | None, margin_s: float = WALLTIME_MARGIN_S) -> None:
        self._stop_at_s = None if end_s is None else end_s - margin_s

    @classmethod
    def of_job(
        cls, walltime_s: float | None, started_s: float, environ: Mapping[str, str] = os.environ
    ) -> WalltimeLimit:
        """The earlier of the configured end and the end that Slurm or a job script announces.

        Args:
            walltime_s: configured limit, counted from `started_s`; None: not configured.
            started_s: when this start of the program began, in seconds of the Unix epoch.
        """
        end = environ.get("SLURM_JOB_END_TIME") or environ.get("HPCBAL_END_TIME", "")
        told_s = float(end) if end.isdigit() else None
        if walltime_s is None or (told_s is not None and told_s < started_s + walltime_s):
            return cls(told_s)
        return cls(started_s + walltime_s, min(WALLTIME_MARGIN_S, walltime_s / 4))

    def reached(self) -> str | None:
        """Return the reason to stop, once, when the time has come; otherwise None."""
        if self._stop_at_s is None or time.time() < self._stop_at_s:
            return None
        self._stop_at_s = None
        return "the walltime is nearly over"
