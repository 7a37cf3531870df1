"""status.json: what a run is doing now, replaced every few seconds by rank 0.

Whoever wants to know reads the file: no port, no server, over ssh too.
"""

from __future__ import annotations

import json
import os
import socket
import time
from pathlib import Path
from typing import Any, NotRequired, TypedDict, cast

from hpcbal.errors import InputError
from hpcbal.telemetry.files.atomic_file import write_json_atomic
from hpcbal.telemetry.files.run_directory import RunDirectory
from hpcbal.telemetry.files.utc import unix_seconds, utc_text
from hpcbal.telemetry.host.processes import process_is_gone

STATUS_SCHEMA = 1
PHASES = ("starting", "profiling", "training", "suspending", "suspended", "finished")
"""What a start may be doing. It ends suspended where the same command goes on, else finished."""
_ENDS = ("suspended", "finished")


class DnnStatus(TypedDict):
    """One DNN: `state` as the state machine names it, `metrics` of its last epoch, `gpus` it holds now.

    `straggler` is who held up its group in the last epoch: `gpu`, `why`, `late_s`; missing where nobody did.
    `left_out` are GPUs that it goes on without, as its group was faster so; missing where there are none.
    """

    name: str
    state: str
    epochs: int
    max_epochs: int
    metrics: dict[str, float | None]
    best_val_accuracy: float | None
    gpus: list[int]
    wall_time_s: float
    slot_seconds: float
    cause: str
    detail: str
    straggler: NotRequired[dict[str, Any]]
    left_out: NotRequired[list[int]]


class PreprocessingStatus(TypedDict):
    """The shared stream: how many ranks feed it, how fast, and what could not be read."""

    preprocessors: int
    samples_per_s: float
    bad_samples: int


class PredictionStatus(TypedDict):
    """If every DNN needs its max_epochs: seconds of this start, and what is left of them."""

    wall_time_s: float
    remaining_s: float


# `pass` is a word of Python, so this one cannot be written as a class.
Status = TypedDict(
    "Status",
    {
        "schema": int,
        "name": str,
        "phase": str,  # one of PHASES
        "outcome": str | None,  # None until the end, then done, failed-dnns, suspended or profiled
        "exit_code": int | None,
        "started_at": str,  # UTC, of this start
        "updated_at": str,
        "elapsed_s": float,  # of this start
        "heartbeat_s": float,  # the run promises to renew the file this often
        "round": int | None,
        "pass": int | None,
        "num_gpus": int,
        "busy_gpus": int,
        "dnns": list[DnnStatus],
        "preprocessing": PreprocessingStatus,
        "prediction": NotRequired[PredictionStatus],  # missing while rates are not known
        "host": str,
        "pid": int,
    },
)


def new_status(name: str, num_gpus: int, *, heartbeat_s: float = 5.0, now: float | None = None) -> Status:
    """The status of a run that starts in this process.

    Args:
        name: of the run.
        num_gpus: accelerator slots of the cluster.
        heartbeat_s: how often the file will be renewed, seconds.
        now: unix seconds (default: the clock).
    """
    moment = utc_text(now)
    return {
        "schema": STATUS_SCHEMA,
        "name": name,
        "phase": "starting",
        "outcome": None,
        "exit_code": None,
        "started_at": moment,
        "updated_at": moment,
        "elapsed_s": 0.0,
        "heartbeat_s": heartbeat_s,
        "round": None,
        "pass": None,
        "num_gpus": num_gpus,
        "busy_gpus": 0,
        "dnns": [],
        "preprocessing": {"preprocessors": 0, "samples_per_s": 0.0, "bad_samples": 0},
        "host": socket.gethostname(),
        "pid": os.getpid(),
    }


def end_status(status: Status, outcome: str, exit_code: int) -> None:
    """Note the end of this start (in place)."""
    status["phase"] = "suspended" if outcome == "suspended" else "finished"
    status["outcome"], status["exit_code"] = outcome, exit_code


def has_ended(status: Status) -> bool:
    """Whether this start came to an end that it noted itself."""
    return status["phase"] in _ENDS


def write_status(path: str | os.PathLike[str], status: Status, now: float | None = None) -> None:
    """Stamp `status` with the time (in place) and replace the file.

    Raises:
        OutputError: if it cannot be written.
    """
    moment = time.time() if now is None else now
    status["updated_at"] = utc_text(moment)
    status["elapsed_s"] = max(0.0, round(moment - unix_seconds(status["started_at"]), 3))
    write_json_atomic(path, status)


def read_status(directory: str | os.PathLike[str]) -> Status:
    """The status of the run in `directory`.

    Raises:
        InputError: if there is no run or its status is of another version.
    """
    path = RunDirectory(Path(directory)).status
    try:
        status: Any = json.loads(path.read_text())
    except FileNotFoundError:
        raise InputError(
            f"{os.fspath(directory)}: no status.json: not the output directory of a run, "
            "or the run has not started yet"
        ) from None
    except OSError as error:
        raise InputError(f"{path}: cannot read: {error.strerror or error}") from error
    except ValueError as error:
        raise InputError(f"{path}: not a status of hpcbal ({error})") from error
    if not isinstance(status, dict) or not Status.__required_keys__ <= status.keys():
        raise InputError(f"{path}: not a status of hpcbal, or of another version of it")
    if status["schema"] != STATUS_SCHEMA:
        raise InputError(f"{path}: schema {status['schema']}, this hpcbal reads {STATUS_SCHEMA}")
    return cast(Status, status)


def silence_s(status: Status, now: float | None = None) -> float:
    """Seconds since the file was last renewed."""
    return max(0.0, (time.time() if now is None else now) - unix_seconds(status["updated_at"]))


def death_note(status: Status, now: float | None = None) -> str | None:
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
