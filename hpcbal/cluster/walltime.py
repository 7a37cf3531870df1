"""When the allocation ends, and when a run must stop to save its work in time."""

from __future__ import annotations

import os
import re
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence

from hpcbal.cluster.started import batch_job, number

WALLTIME_MARGIN_S = 60.0
ASKING_S = 5.0
"""A batch system that does not answer by then is not waited for."""

Ask = Callable[[Sequence[str]], str]
"""Runs a command of a batch system and returns its output; empty if it fails."""


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
        """The earlier of the configured end and the end of the batch job.

        Args:
            walltime_s: configured limit, counted from `started_s`; None: not configured.
            started_s: when this start of the program began, in seconds of the Unix epoch.
        """
        end_s = end_of_job(environ, started_s)
        if walltime_s is None or (end_s is not None and end_s < started_s + walltime_s):
            return cls(end_s)
        return cls(started_s + walltime_s, min(WALLTIME_MARGIN_S, walltime_s / 4))

    def reached(self) -> str | None:
        """Return the reason to stop, once, when the time has come; otherwise None."""
        if self._stop_at_s is None or time.time() < self._stop_at_s:
            return None
        self._stop_at_s = None
        return "the walltime is nearly over"


def answer_of(command: Sequence[str]) -> str:
    """Return the output of a command of a batch system; empty if it is not installed, fails or hangs."""
    try:
        done = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=ASKING_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout if done.returncode == 0 else ""


_ASKING: Mapping[str, tuple[str, ...]] = {
    "Slurm": ("squeue", "--noheader", "--format=%L", "--jobs"),
    "PBS": ("qstat", "-f"),
    "LSF": ("bjobs", "-noheader", "-o", "time_left"),
    "Flux": ("flux", "job", "timeleft"),
}
"""Commands that say how long a job may still run; its id follows."""

_FOREVER_S = 10 * 365 * 86400
"""Flux says 4294967295 seconds, or more, where there is no limit."""


def end_of_job(environ: Mapping[str, str], started_s: float, ask: Ask = answer_of) -> float | None:
    """Return the end of the batch job, in seconds of the Unix epoch; None if there is none, or nobody says.

    The environment counts, as Slurm or a job script has set it. Where it does not say (older versions of
    Slurm, PBS, LSF, Flux), the batch system is asked once.

    Args:
        environ: of this process.
        started_s: when this start of the program began, in seconds of the Unix epoch.
        ask: how the batch system is asked.
    """
    told = number(environ.get("SLURM_JOB_END_TIME") or environ.get("HPCBAL_END_TIME"))
    if told is not None:
        return float(told)
    job = batch_job(environ)
    if job is None:
        return None
    asked_s = time.time()
    text = ask([*_ASKING[job.system], job.job_id]).strip()
    if job.system == "PBS":
        end_s = _end_in_qstat(text)
        return started_s + job.walltime_s if end_s is None and job.walltime_s is not None else end_s
    if job.system == "LSF":  # hours:minutes and a letter: L, of the limit; E, of an estimate
        found = re.fullmatch(r"(\d+):(\d+) (?:L|E|X)", text)
        return None if found is None else asked_s + 3600 * int(found[1]) + 60 * int(found[2])
    left_s = duration_s(text.split("\n")[0])  # Slurm has a line for each component
    return None if left_s is None or left_s > _FOREVER_S else asked_s + left_s


def _end_in_qstat(text: str) -> float | None:
    """Return the end of a job by PBS's own words: when it began, and how long it may take."""
    walltime = re.search(r"Resource_List\.walltime = (\S+)", text)
    began = re.search(r"\b(?:stime|start_time) = (.+)", text)
    limit_s = None if walltime is None else duration_s(walltime[1])
    if limit_s is None or began is None:
        return None
    try:
        return time.mktime(time.strptime(began[1].strip(), "%a %b %d %H:%M:%S %Y")) + limit_s
    except (ValueError, OverflowError):
        return None


_DURATION = re.compile(
    r"(?:(?:(?P<days>\d+)-)?(?:(?P<hours>\d+):)?(?P<minutes>\d+):)?(?P<seconds>\d+)(?:\.\d*)?"
)


def duration_s(text: str) -> float | None:
    """Return the seconds of `[[days-]hours:]minutes:seconds`, or of seconds alone; None for other words."""
    found = _DURATION.fullmatch(text)
    if found is None:
        return None
    parts = {name: int(value or 0) for name, value in found.groupdict().items()}
    return float(86400 * parts["days"] + 3600 * parts["hours"] + 60 * parts["minutes"] + parts["seconds"])
