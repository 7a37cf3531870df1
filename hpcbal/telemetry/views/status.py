"""status.json: what a run is doing now, replaced every few seconds by rank 0.

Whoever wants to know reads the file: no port, no server, over ssh too. Here is what the files of all kinds
of runs share; what a kind adds is in a module of its own, and `kinds` lists them.
"""

# No `from __future__ import annotations`: with it a TypedDict takes NotRequired keys for required ones.

import os
import socket
import time
from typing import NotRequired, TypedDict

from hpcbal.telemetry.files.atomic_file import write_json_atomic
from hpcbal.telemetry.files.utc import unix_seconds, utc_text
from hpcbal.telemetry.host.processes import process_is_gone

STATUS_SCHEMA = 1
PHASES = ("starting", "profiling", "training", "suspending", "suspended", "finished")
"""What a start may be doing. It ends suspended where the same command continues the run, else finished."""
_ENDS = ("suspended", "finished")


class JobStatus(TypedDict):
    """One job: `state` as the state machine names it, `metrics` of its last epoch, costs of all starts."""

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
    """If every job needs its max_epochs: seconds of this start, and what is left of them."""

    wall_time_s: float
    remaining_s: float


class RunStatus(TypedDict):
    """What every kind of run reports.

    `kind` is missing in files from before there were kinds. `outcome` and `exit_code` are None until the end.
    Outcomes are done, failed-dnns, suspended and profiled. `started_at` and `elapsed_s` are of this start.
    The file is renewed every `heartbeat_s`. `prediction` is missing while it is not known.
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
    host: str
    pid: int


def new_run_status(kind: str, name: str, num_gpus: int, heartbeat_s: float, now: float | None) -> RunStatus:
    """The shared part of the status of a run that starts in this process.

    Args:
        kind: of the run.
        name: of the run.
        num_gpus: accelerator slots of the cluster.
        heartbeat_s: how often the file will be renewed, seconds.
        now: unix seconds; None: the clock's.
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
    }


def end_status(status: RunStatus, outcome: str, exit_code: int) -> None:
    """Note the end of this start (in place)."""
    status["phase"] = "suspended" if outcome == "suspended" else "finished"
    status["outcome"], status["exit_code"] = outcome, exit_code


def has_ended(status: RunStatus) -> bool:
    """Whether this start came to an end that it noted itself."""
    return status["phase"] in _ENDS


def write_status(path: str | os.PathLike[str], status: RunStatus, now: float | None = None) -> None:
    """Stamp `status` with the time (in place) and replace the file.

    Raises:
        OutputError: if it cannot be written.
    """
    moment = time.time() if now is None else now
    status["updated_at"] = utc_text(moment)
    status["elapsed_s"] = max(0.0, round(moment - unix_seconds(status["started_at"]), 3))
    write_json_atomic(path, status)


def silence_s(status: RunStatus, now: float | None = None) -> float:
    """Seconds since the file was last renewed."""
    return max(0.0, (time.time() if now is None else now) - unix_seconds(status["updated_at"]))


def death_note(status: RunStatus, now: float | None = None) -> str | None:
    """Why the run seems to have died without saying so; None while there is no sign of it.

    The process is looked up only if this is its host. Otherwise silence counts: 6 heartbeats, 30 s at least.
    """
    if has_ended(status):
        return None
    who = f"process {status['pid']} on {status['host']}"
    if status["host"] == socket.gethostname() and process_is_gone(status["pid"]):
        return f"{who} is gone: the run was killed; the same command continues it"
    silence = silence_s(status, now)
    if silence > max(30.0, 6 * status["heartbeat_s"]):
        return (
            f"{who} has been silent for {silence:.0f} s (it should speak every {status['heartbeat_s']:g} s): "
            "the run hangs or was killed; if the job is gone, the same command continues it"
        )
    return None
