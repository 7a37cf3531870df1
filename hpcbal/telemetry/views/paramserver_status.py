"""The parts of status.json that only runs of parameter-server jobs have: of one job, and of many."""

# No `from __future__ import annotations`, see `status`.

from typing import NotRequired, TypedDict

from hpcbal.telemetry.views.status import JobStatus, RunStatus, new_run_status


class PsJobStatus(JobStatus):
    """One job; `main_metric` is the one that its stop rule watches, `best` its best value.

    Jobs that share machines have `alpha`, the share of its samples that is on disk, `spilled_bytes`, their
    size, and `load_stop_s`, for how long turns have waited for a disk since the job came to its machines.
    """

    main_metric: str
    best: float | None
    alpha: NotRequired[float]
    spilled_bytes: NotRequired[int]
    load_stop_s: NotRequired[float]


class ExecutorStatus(TypedDict):
    """One executor: its rank, its role (worker, server, both, standby), and how many blocks it owns.

    Unless it is `in_use`, the site has taken it back, or not given it yet.
    """

    rank: int
    role: str
    data_blocks: int
    parameter_blocks: int
    in_use: bool


class ParamServerStatus(RunStatus):
    """The status of a parameter-server job; in `num_slots` and `busy_slots` slots are executors.

    `reconfiguring` is what the job is changing now, in words; missing if it changes nothing.
    """

    jobs: list[PsJobStatus]
    executors: list[ExecutorStatus]
    reconfiguring: NotRequired[str]


def new_paramserver_status(
    name: str, num_executors: int, *, heartbeat_s: float = 5.0, now: float | None = None
) -> ParamServerStatus:
    """The status of a parameter-server job that starts in this process.

    Args:
        name: name of the run.
        num_executors: ranks beside the master.
        heartbeat_s: seconds between two updates of the file.
        now: Unix seconds (default: the current time).
    """
    shared = new_run_status("paramserver", name, num_executors, heartbeat_s, now)
    return {**shared, "jobs": [], "executors": []}


class GroupStatus(TypedDict):
    """Jobs that share machines: names of the jobs, ranks of the machines, seconds of one of its iterations.

    `predicted_s` and `measured_s` are None while they are unknown.
    """

    jobs: list[str]
    machines: list[int]
    predicted_s: float | None
    measured_s: float | None


class JobsStatus(RunStatus):
    """The status of many parameter-server jobs; in `num_slots` and `busy_slots` slots are machines."""

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
