"""When the allocation ends, and when a run must stop to save its work in time."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping

from hpcbal.cluster.started import BatchJob, batch_job, number
from hpcbal.cluster.systems import SYSTEMS
from hpcbal.cluster.systems.commands import run_command
from hpcbal.errors import ClusterError

WALLTIME_MARGIN_S = 60.0
ASKING_S = 5.0
"""A batch system that does not answer by then is not waited for."""


def end_by_system(job: BatchJob) -> float | None:
    """Ask a batch system when a job ends; None if it has no limit, or there is no answer.

    Args:
        job: the job.

    Returns: its end, in seconds of the Unix epoch.
    """
    system = SYSTEMS[job.system.lower()]
    try:
        done = run_command(system.question([job.job_id]), timeout_s=ASKING_S)
    except ClusterError:
        return None
    return None if done.code else system.state_of(done.stdout).until_s


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


def end_of_job(
    environ: Mapping[str, str],
    started_s: float,
    end_by_system: Callable[[BatchJob], float | None] = end_by_system,
) -> float | None:
    """Return the end of the batch job, in seconds of the Unix epoch; None if there is none, or nobody says.

    The environment counts, as Slurm or a job script has set it. Where it does not say (older versions of
    Slurm, PBS, LSF, Flux), the batch system is asked once.

    Args:
        environ: of this process.
        started_s: when this start of the program began, in seconds of the Unix epoch.
        end_by_system: how the batch system is asked.
    """
    told = number(environ.get("SLURM_JOB_END_TIME") or environ.get("HPCBAL_END_TIME"))
    if told is not None:
        return float(told)
    job = batch_job(environ)
    if job is None:
        return None
    end_s = end_by_system(job)
    return started_s + job.walltime_s if end_s is None and job.walltime_s is not None else end_s
