"""Read the status.json of a run of any kind."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

from hpcbal.errors import HpcbalError, InputError
from hpcbal.telemetry.files.atomic_file import write_json_atomic
from hpcbal.telemetry.files.own_files import read_file
from hpcbal.telemetry.files.run_directory import RunDirectory
from hpcbal.telemetry.files.utc import unix_seconds
from hpcbal.telemetry.views.conforming import misfit
from hpcbal.telemetry.views.kinds import VIEWS, AnyStatus, view_of
from hpcbal.telemetry.views.status import STATUS_SCHEMA, RunStatus, has_ended

_ADVICE = "; the run writes it again when it is resumed"


def read_status(directory: str | os.PathLike[str]) -> AnyStatus:
    """The status of the run in `directory`.

    Raises:
        InputError: if there is no run, or its status is damaged or from another version.
    """
    run = RunDirectory(Path(directory))
    run.check_exists()
    path = run.status
    try:
        status: Any = json.loads(read_file(path))
    except FileNotFoundError:
        raise InputError(
            f"{os.fspath(directory)}: no status.json: not the output directory of a run, "
            "or the run has not started yet"
        ) from None
    except OSError as error:
        raise InputError(f"{path}: cannot read: {error.strerror or error}") from error
    except (ValueError, RecursionError) as error:
        raise InputError(f"{path}: not a status file of hpcbal ({error}){_ADVICE}") from error
    if not isinstance(status, dict) or not RunStatus.__required_keys__ <= status.keys():
        raise InputError(f"{path}: not a status file of hpcbal, or from another version of it")
    kind = status.get("kind")
    if kind is not None and (not isinstance(kind, str) or kind not in VIEWS):
        raise InputError(
            f"{path}: belongs to a run of kind {kind!r}, but this hpcbal knows only {', '.join(VIEWS)}; "
            "use the version that made the run"
        )
    if status["schema"] != STATUS_SCHEMA:
        raise InputError(
            f"{path}: has schema {status['schema']}, but this hpcbal reads schema {STATUS_SCHEMA}; "
            "use the version that made the run"
        )
    problem = misfit(status, view_of(kind).status_type) or _no_time(status)
    if problem is not None:
        raise InputError(f"{path}: damaged ({problem}){_ADVICE}")
    return cast(AnyStatus, status)


def import_roots_of(directory: str | os.PathLike[str]) -> tuple[str, ...]:
    """Where the run's last start looked for the user's modules: those directories that exist here.

    They are beside the file that the run was started with, which may lie anywhere, and where it was started.
    Without a status that can be read there are none.
    """
    try:
        found = read_status(directory).get("import_roots", [])
    except HpcbalError:
        return ()
    return tuple(root for root in found if os.path.isdir(root))


def note_death(path: Path, reason: str) -> None:
    """Add why a start has died to its status; without effect if the file cannot be read or written."""
    with contextlib.suppress(HpcbalError):
        status = read_status(path.parent)
        if not has_ended(status):
            status["death"] = reason
            write_json_atomic(path, status)


def _no_time(status: Mapping[str, Any]) -> str | None:
    """What is wrong with the times of a status; None if both can be read."""
    for name, text in (("started_at", status["started_at"]), ("updated_at", status["updated_at"])):
        try:
            unix_seconds(text)
        except (ValueError, OverflowError):
            return f"{name} is {text!r}, allowed: a time like 2025-01-31T12:00:00.000Z"
    return None
