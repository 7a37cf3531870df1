"""Show status.json to users."""

from __future__ import annotations

from hpcbal.errors import ExitCode
from hpcbal.printable import printable
from hpcbal.telemetry.files.utc import duration_text
from hpcbal.telemetry.views.kinds import AnyStatus, KindView, view_of
from hpcbal.telemetry.views.status import death_note, has_ended, silence_s
from hpcbal.telemetry.views.table import count_text


def render_status(status: AnyStatus, now: float | None = None) -> str:
    """A page of printable text: what the run does, its jobs, and a warning if the run seems dead.

    Args:
        status: the content of status.json.
        now: Unix seconds (default: the current time).
    """
    age = silence_s(status, now)
    view = view_of(status.get("kind"))
    lines = [_headline(status, view), *view.body_of(status)]
    lines += ["", f"as of {status['updated_at']} ({_age_text(age)} ago), {status['host']}:{status['pid']}"]
    how = _how_to_continue(status, view)
    if how is not None:
        lines += ["", how]
    note = death_note(status, now)
    if note is not None:
        lines += ["", f"WARNING: {note}"]
    return printable("\n".join(lines)) + "\n"


def _how_to_continue(status: AnyStatus, view: KindView) -> str | None:
    """What the user can do next after the end of a start; None if nothing is left to do."""
    match status["outcome"], status["exit_code"]:
        case "suspended", ExitCode.RUN_AGAIN:
            return "stopped before the end, all progress is saved: run the same command again to resume"
        case "suspended", _:
            return "stopped by an error (see the logs): fix its cause and run the same command again"
        case "failed-dnns", _:
            return f"to give failed {view.job}s another try, run the same command with --retry-failed"
        case "profiled", _:
            return "rates are measured, nothing was trained: see 'hpcbal plan', or start 'hpcbal run'"
    return None


def _headline(status: AnyStatus, view: KindView) -> str:
    parts = [f"{status['name']}: {status['phase']}"]
    if status["outcome"] == "suspended":  # the start is finished, the run is not
        parts = [f"{status['name']}: suspended (exit code {status['exit_code']})"]
    elif status["outcome"] is not None:
        parts[0] += f" ({status['outcome']}, exit code {status['exit_code']})"
    if not has_ended(status):
        parts += view.place_of(status)
        parts.append(f"{status['busy_gpus']} of {count_text(status['num_gpus'], 'slot')} busy")
    parts.append(f"running for {duration_text(status['elapsed_s'])}")
    if "prediction" in status and status["phase"] == "training":
        parts.append(f"{duration_text(status['prediction']['remaining_s'])} left to max_epochs")
    if has_ended(status):
        parts[-1] = f"the last start took {duration_text(status['elapsed_s'])}"
    return ", ".join(parts)


def _age_text(seconds: float) -> str:
    return f"{seconds:.0f} s" if seconds < 120 else duration_text(seconds)
