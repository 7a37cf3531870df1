"""status.json: the current state of a run, replaced every few seconds by rank 0.

Reading the file needs no port and no server, and works over ssh. This module defines what the files of all
kinds of runs share. Each kind's additions are in their own module; `kinds` lists the kinds.
"""

# No `from __future__ import annotations`: with it, a TypedDict treats NotRequired keys as required.

import os
import socket
import time
from typing import NotRequired, TypedDict

from hpcbal.telemetry.files.atomic_file import write_json_atomic
from hpcbal.telemetry.files.utc import unix_seconds, utc_text
from hpcbal.telemetry.host.processes import identity_of, is_running

STATUS_SCHEMA = 1
PHASES = ("starting", "profiling", "training", "suspending", "suspended", "finished")
"""Phases of a start. It ends as suspended if the same command resumes the run, otherwise as finished."""
_ENDS = ("suspended", "finished")


class JobStatus(TypedDict):
    """One job: `state` as in the state machine, `metrics` of its last epoch, costs over all starts."""

    name: str
    state: str
    epochs: int
    max_epochs: int
    metrics: dict[str, float | None]
    wall_time_s: float
    slot_seconds: float
    cause: str
    detail: str


class PredictionStatus(TypedDict):
    """The predicted seconds of this start, and those that are left, if every job trains to its max_epochs."""

    wall_time_s: float
    remaining_s: float


class RunStatus(TypedDict):
    """The status that every kind of run reports.

    `kind` is missing in files from before there were kinds. `outcome` and `exit_code` are None until the end.
    Outcomes are done, failed-dnns, suspended and profiled. `started_at` and `elapsed_s` refer to this start.
    The file is updated every `heartbeat_s`. `prediction` is missing while it is unknown. `death` is why the
    start ended without recording its end, where another rank has seen it. `import_roots` are the
    directories in which this start looked for the user's modules, on its machine. `process` identifies the
    process of `pid`, see `identity_of`.
    """

    schema: int
    kind: NotRequired[str]
    name: str
    phase: str
    outcome: str | None
    exit_code: int | None
    started_at: str
    updated_at: str
    elapsed_s: float
    heartbeat_s: float
    num_gpus: int
    busy_gpus: int
    prediction: NotRequired[PredictionStatus]
    death: NotRequired[str]
    import_roots: NotRequired[list[str]]
    host: str
    pid: int
    process: NotRequired[dict[str, str]]


def new_run_status(kind: str, name: str, num_gpus: int, heartbeat_s: float, now: float | None) -> RunStatus:
    """The shared part of the status of a run that starts in this process.

    Args:
        kind: kind of the run.
        name: name of the run.
        num_gpus: number of accelerator slots in the cluster.
        heartbeat_s: seconds between two updates of the file.
        now: Unix seconds; None means the current time.
    """
    moment = utc_text(now)
    return {
        "schema": STATUS_SCHEMA,
        "kind": kind,
        "name": name,
        "phase": "starting",
        "outcome": None,
        "exit_code": None,
        "started_at": moment,
        "updated_at": moment,
        "elapsed_s": 0.0,
        "heartbeat_s": heartbeat_s,
        "num_gpus": num_gpus,
        "busy_gpus": 0,
        "host": socket.gethostname(),
        "pid": os.getpid(),
        "process": identity_of(os.getpid()),
    }


def end_status(status: RunStatus, outcome: str, exit_code: int) -> None:
    """Record the end of this start, in place."""
    status["phase"] = "suspended" if outcome == "suspended" else "finished"
    status["outcome"], status["exit_code"] = outcome, exit_code


def has_ended(status: RunStatus) -> bool:
    """Whether this start has recorded its own end."""
    return status["phase"] in _ENDS


def write_status(path: str | os.PathLike[str], status: RunStatus, now: float | None = None) -> None:
    """Set the time in `status`, in place, and replace the file.

    Raises:
        OutputError: if the file cannot be written.
    """
    moment = time.time() if now is None else now
    status["updated_at"] = utc_text(moment)
    status["elapsed_s"] = max(0.0, round(moment - unix_seconds(status["started_at"]), 3))
    write_json_atomic(path, status)


def silence_s(status: RunStatus, now: float | None = None) -> float:
    """Seconds since the last update of the file."""
    return max(0.0, (time.time() if now is None else now) - unix_seconds(status["updated_at"]))


def death_note(status: RunStatus, now: float | None = None) -> str | None:
    """Why the run seems to have died without recording its end; None if there is no sign of that.

    The process is checked where it can be seen. Otherwise silence for 6 heartbeats, at least 30 s, counts.
    """
    if has_ended(status):
        return None
    if "death" in status:
        return status["death"]
    who = f"process {status['pid']} on {status['host']}"
    is_here = status["host"] == socket.gethostname()
    if is_here and is_running(status["pid"], status.get("process", {})) is False:
        return f"{who} is gone: the run was killed; run the same command again to resume it"
    silence = silence_s(status, now)
    if silence > max(30.0, 6 * status["heartbeat_s"]):
        return (
            f"{who} has been silent for {silence:.0f} s (updates: every {status['heartbeat_s']:g} s): "
            "the run hangs or was killed; if the job is gone, run the same command again to resume it"
        )
    return None
