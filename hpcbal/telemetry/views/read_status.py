"""Read the status.json of a run of any kind, and show it."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

from hpcbal.errors import ExitCode, HpcbalError, InputError
from hpcbal.kinds import KINDS, Kind
from hpcbal.safe_text import printable
from hpcbal.telemetry.files.atomic_file import cannot_read, read_file, write_json_atomic
from hpcbal.telemetry.files.json_lines import duration_text, unix_seconds
from hpcbal.telemetry.files.run_directory import RunDirectory
from hpcbal.telemetry.views.kinds import AnyStatus, kind_of
from hpcbal.telemetry.views.status import STATUS_SCHEMA, RunStatus, death_note, has_ended, misfit, silence_s
from hpcbal.telemetry.views.table import count_text

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
        raise InputError(cannot_read(path, error)) from error
    except (ValueError, RecursionError) as error:
        raise InputError(f"{path}: not a status file of hpcbal ({error}){_ADVICE}") from error
    if not isinstance(status, dict) or not RunStatus.__required_keys__ <= status.keys():
        raise InputError(f"{path}: not a status file of hpcbal, or from another version of it")
    kind = status["kind"]
    if not isinstance(kind, str) or kind not in KINDS:
        raise InputError(
            f"{path}: belongs to a run of kind {kind!r}, but this hpcbal knows only {', '.join(KINDS)}; "
            "use the version that made the run"
        )
    if status["schema"] != STATUS_SCHEMA:
        raise InputError(
            f"{path}: has schema {status['schema']}, but this hpcbal reads schema {STATUS_SCHEMA}; "
            "use the version that made the run"
        )
    problem = misfit(status, KINDS[kind].view.status_type) or _no_time(status)
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
    """Return the error in the times of a status; None if both can be read."""
    for name, text in (("started_at", status["started_at"]), ("updated_at", status["updated_at"])):
        try:
            unix_seconds(text)
        except (ValueError, OverflowError):
            return f"{name} is {text!r}, allowed: a time like 2025-01-31T12:00:00.000Z"
    return None


def render_status(status: AnyStatus, now: float | None = None, *, comes_back: bool = False) -> str:
    """A page of printable text: what the run does, its jobs, and a warning if the run seems dead.

    Args:
        status: the content of status.json.
        now: Unix seconds (default: the current time).
        comes_back: whether a batch job waits to continue the run, and none runs.
    """
    age = silence_s(status, now)
    kind = kind_of(status)
    lines = [_headline(status, kind), *kind.view.body_of(status)]
    lines += ["", f"as of {status['updated_at']} ({_age_text(age)} ago), {status['host']}:{status['pid']}"]
    how, note = _how_to_continue(status, kind), death_note(status, now)
    if comes_back and status["phase"] != "finished":
        lines += ["", "stopped before the end: its batch job continues the run from the last checkpoints"]
    elif how is not None:
        lines += ["", how]
    elif note is not None:
        lines += ["", f"WARNING: {note}"]
    return printable("\n".join(lines)) + "\n"


def _how_to_continue(status: AnyStatus, kind: Kind) -> str | None:
    """Advise the user after the end of a start; None if nothing is left to do."""
    match status["outcome"], status["exit_code"]:
        case "suspended", ExitCode.RUN_AGAIN:
            return "stopped before the end, all progress is saved: run the same command again to resume"
        case "suspended", _:
            return "stopped by an error (see the logs): fix its cause and run the same command again"
        case "failed-dnns", _:
            return f"to give failed {kind.job}s another try, run the same command with --retry-failed"
        case "profiled", _:
            return "rates are measured, nothing was trained: see 'hpcbal plan', or start 'hpcbal run'"
    return None


def _headline(status: AnyStatus, kind: Kind) -> str:
    parts = [f"{status['name']}: {status['phase']}"]
    if status["outcome"] == "suspended":  # the start is finished, the run is not
        parts = [f"{status['name']}: suspended (exit code {status['exit_code']})"]
    elif status["outcome"] is not None:
        parts[0] += f" ({status['outcome']}, exit code {status['exit_code']})"
    if not has_ended(status):
        parts += kind.view.place_of(status)
        parts.append(f"{status['busy_slots']} of {count_text(status['num_slots'], 'slot')} busy")
    parts.append(f"running for {duration_text(status['elapsed_s'])}")
    if "prediction" in status and status["phase"] == "training":
        parts.append(f"{duration_text(status['prediction']['remaining_s'])} left to max_epochs")
    if has_ended(status):
        parts[-1] = f"the last start took {duration_text(status['elapsed_s'])}"
    return ", ".join(parts)


def _age_text(seconds: float) -> str:
    return f"{seconds:.0f} s" if seconds < 120 else duration_text(seconds)
