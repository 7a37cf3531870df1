"""The part of status.json that only runs of many parameter-server jobs have."""

# No `from __future__ import annotations`, see `status`.

from typing import TypedDict

from hpcbal.telemetry.views.paramserver_status import PsJobStatus
from hpcbal.telemetry.views.status import RunStatus, new_run_status


class GroupStatus(TypedDict):
    """Jobs that share machines: names of the jobs, ranks of the machines, seconds of one of its iterations.

    `predicted_s` and `measured_s` are None while they are unknown.
    """

    jobs: list[str]
    machines: list[int]
    predicted_s: float | None
    measured_s: float | None


class JobsStatus(RunStatus):
    """The status of many parameter-server jobs; in `num_gpus` and `busy_gpus` slots are machines."""

    jobs: list[PsJobStatus]
    groups: list[GroupStatus]


def new_jobs_status(
    name: str, num_machines: int, *, heartbeat_s: float = 5.0, now: float | None = None
) -> JobsStatus:
    """The status of many parameter-server jobs that start in this process.

    Args:
        name: name of the run.
        num_machines: ranks beside the scheduler.
        heartbeat_s: seconds between two updates of the file.
        now: Unix seconds (default: the current time).
    """
    shared = new_run_status("jobs", name, num_machines, heartbeat_s, now)
    return {**shared, "jobs": [], "groups": []}
