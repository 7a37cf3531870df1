"""status.json: the current state of a run, written every few seconds and read with checks.

Reading the file needs no port and no server, and works over ssh. This module defines what the files of all
kinds of runs share. Each kind's additions are in their own module.
"""

# No `from __future__ import annotations`: with it, a TypedDict treats NotRequired keys as required.

import json
import math
import os
import socket
import time
import types
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NotRequired, TypedDict, Union, get_args, get_origin, get_type_hints, is_typeddict

from hpcbal.telemetry.files.atomic_file import write_json_atomic
from hpcbal.telemetry.files.json_lines import unix_seconds, utc_text
from hpcbal.telemetry.resources.processes import identity_of, is_running

_NAMES = {str: "text", int: "a whole number", bool: "true or false", type(None): "null", float: "a number"}
_MOST_SHOWN = 40


def misfit(value: Any, hint: Any, place: str = "") -> str | None:
    """Return how a value fails to conform, and where; None if it conforms.

    Keys that a TypedDict does not have are allowed: a later version may write them.

    Args:
        value: what `json.loads` returned.
        hint: a TypedDict, a list or dict of something, a union, Any, or a type of JSON.
        place: where the value is, as a dotted path.
    """
    if is_typeddict(hint):
        return _misfit_of_keys(value, hint, place)
    origin, arguments = get_origin(hint), get_args(hint)
    if origin is NotRequired:
        return misfit(value, arguments[0], place)
    if origin in (Union, types.UnionType):
        problems = [misfit(value, each, place) for each in arguments]
        return None if None in problems else problems[0]
    if origin is list:
        items = list(enumerate(value)) if isinstance(value, list) else None
        return _first_misfit(items, arguments[0], place, value, "a list")
    if origin is dict:
        items = list(value.items()) if isinstance(value, dict) else None
        return _first_misfit(items, arguments[1], place, value, "an object")
    if hint is Any or _is_plain(value, hint):
        return None
    return _refusal(place, value, _NAMES[hint])


def _misfit_of_keys(value: Any, hint: Any, place: str) -> str | None:
    if not isinstance(value, dict):
        return _refusal(place, value, "an object")
    for name, inside in get_type_hints(hint, include_extras=True).items():
        below = f"{place}.{name}" if place else name
        if name not in value:
            if name in hint.__required_keys__:
                return f"{below} is missing"
            continue
        problem = misfit(value[name], inside, below)
        if problem is not None:
            return problem
    return None


def _first_misfit(
    items: list[tuple[Any, Any]] | None, hint: Any, place: str, value: Any, allowed: str
) -> str | None:
    if items is None:
        return _refusal(place, value, allowed)
    problems = (misfit(item, hint, f"{place}.{key}") for key, item in items)
    return next((problem for problem in problems if problem is not None), None)


def _is_plain(value: Any, hint: Any) -> bool:
    """Whether a value has a type of JSON; numbers must be finite and fit a float."""
    if hint is float or hint is int:
        if isinstance(value, bool) or not isinstance(value, int if hint is int else int | float):
            return False
        return abs(value) < 1e300 and math.isfinite(value)
    return type(value) is hint


def _refusal(place: str, value: Any, allowed: str) -> str:
    text = json.dumps(value)
    shown = text if len(text) <= _MOST_SHOWN else f"{text[: _MOST_SHOWN - 3]}..."
    return f"{place or 'it'} is {shown}, allowed: {allowed}"


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
    """The predicted seconds of this start, and those that are left, if every job trains to its max_epochs.

    `next_s` are, by name, the seconds until jobs that have no slots begin: the first ones, in that order.
    """

    wall_time_s: float
    remaining_s: float
    next_s: NotRequired[dict[str, float]]


class RunStatus(TypedDict):
    """The status that every kind of run reports.

    `outcome` and `exit_code` are None until the end.
    Outcomes are done, failed-dnns, suspended and profiled. `started_at` and `elapsed_s` refer to this start.
    The file is updated every `heartbeat_s`. `prediction` is missing while it is unknown. `death` is why the
    start ended without recording its end, where another rank has seen it. `import_roots` are the
    directories in which this start looked for the user's modules, on its machine. `process` identifies the
    process of `pid`, see `identity_of`.
    """

    schema: int
    kind: str
    name: str
    phase: str
    outcome: str | None
    exit_code: int | None
    started_at: str
    updated_at: str
    elapsed_s: float
    heartbeat_s: float
    num_slots: int
    busy_slots: int
    prediction: NotRequired[PredictionStatus]
    death: NotRequired[str]
    import_roots: NotRequired[list[str]]
    host: str
    pid: int
    process: NotRequired[dict[str, str]]


@dataclass(frozen=True, slots=True)
class KindView:
    """How the status of one kind of run is checked and drawn.

    Attributes:
        status_type: the TypedDict of a status.json of this kind.
        place_of: returns the parts of the headline that show how far the run is.
        body_of: returns the lines below the headline.
    """

    status_type: type[RunStatus]
    place_of: Callable[[Any], list[str]]
    body_of: Callable[[Any], list[str]]


def new_run_status(kind: str, name: str, num_slots: int, heartbeat_s: float, now: float | None) -> RunStatus:
    """The shared part of the status of a run that starts in this process.

    Args:
        kind: kind of the run.
        name: name of the run.
        num_slots: number of slots in the cluster.
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
        "num_slots": num_slots,
        "busy_slots": 0,
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
