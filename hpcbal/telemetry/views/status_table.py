"""Show status.json to people."""

from __future__ import annotations

from hpcbal.errors import ExitCode
from hpcbal.telemetry.files.utc import duration_text
from hpcbal.telemetry.views.status import DnnStatus, Status, death_note, has_ended, silence_s
from hpcbal.telemetry.views.table import count_text, format_table, number_text, telling_line

_MAX_DETAIL = 160


def render_status(status: Status, now: float | None = None) -> str:
    """A page of text: what the run does, each DNN's state, and a warning if the run seems dead.

    Args:
        status: as read from status.json.
        now: unix seconds (default: the clock).
    """
    age = silence_s(status, now)
    lines = [_headline(status), _stream_line(status), ""]
    lines += _dnn_table(status["dnns"])
    lines += _straggler_lines(status["dnns"])
    lines += ["", f"as of {status['updated_at']} ({_age_text(age)} ago), {status['host']}:{status['pid']}"]
    how = _how_to_go_on(status)
    if how is not None:
        lines += ["", how]
    note = death_note(status, now)
    if note is not None:
        lines += ["", f"WARNING: {note}"]
    return "\n".join(lines) + "\n"


def _how_to_go_on(status: Status) -> str | None:
    """After an end that need not be the last word."""
    match status["outcome"], status["exit_code"]:
        case "suspended", ExitCode.RUN_AGAIN:
            return "stopped before the end, all progress is saved: start the same command again to go on"
        case "suspended", _:
            return "stopped by an error, which the logs tell; once it is mended, the same command goes on"
        case "failed-dnns", _:
            return "with --retry-failed the same command gives failed DNNs another try"
        case "profiled", _:
            return "rates are measured, nothing was trained: see 'hpcbal plan', or start 'hpcbal run'"
    return None


def _headline(status: Status) -> str:
    parts = [f"{status['name']}: {status['phase']}"]
    if status["outcome"] == "suspended":  # the start is finished, the run is not
        parts = [f"{status['name']}: suspended (exit code {status['exit_code']})"]
    elif status["outcome"] is not None:
        parts[0] += f" ({status['outcome']}, exit code {status['exit_code']})"
    if not has_ended(status):
        if status["round"] is not None:
            parts.append(f"round {status['round']}")
        if status["pass"] is not None:
            parts.append(f"pass {status['pass']}")
        parts.append(f"{status['busy_gpus']} of {count_text(status['num_gpus'], 'GPU')} busy")
    parts.append(f"running for {duration_text(status['elapsed_s'])}")
    if "prediction" in status and status["phase"] == "training":
        parts.append(f"{duration_text(status['prediction']['remaining_s'])} to go for max_epochs")
    if has_ended(status):
        parts[-1] = f"the last start took {duration_text(status['elapsed_s'])}"
    return ", ".join(parts)


def _stream_line(status: Status) -> str:
    stream = status["preprocessing"]
    states: dict[str, int] = {}
    for dnn in status["dnns"]:
        states[dnn["state"]] = states.get(dnn["state"], 0) + 1
    counts = ", ".join(f"{count} {state}" for state, count in states.items())
    line = f"{count_text(len(status['dnns']), 'DNN')}: {counts}" if counts else "no DNNs yet"
    if stream["preprocessors"]:
        makers = count_text(stream["preprocessors"], "preprocessor")
        line += f"; {makers}, {stream['samples_per_s']:.0f} samples/s"
    if stream["bad_samples"]:
        line += f"; {count_text(stream['bad_samples'], 'bad sample')} left out"
    return line


def _dnn_table(dnns: list[DnnStatus]) -> list[str]:
    with_cause = any(dnn["cause"] for dnn in dnns)
    headers = ["name", "state", "epochs", "val acc", "best", "GPUs", "wall time"]
    if with_cause:
        headers.append("cause")
    rows = []
    for dnn in dnns:
        row = [
            dnn["name"],
            dnn["state"],
            f"{dnn['epochs']}/{dnn['max_epochs']}",
            number_text(dnn["metrics"].get("val_accuracy")),
            number_text(dnn["best_val_accuracy"]),
            " ".join(map(str, dnn["gpus"])) or "-",
            duration_text(dnn["wall_time_s"]),
        ]
        rows.append([*row, _cause_text(dnn)] if with_cause else row)
    return format_table(headers, rows, right={2, 3, 4, 6})


def _straggler_lines(dnns: list[DnnStatus]) -> list[str]:
    """Whom each group waited for in its last epoch, and whom it does without."""
    lines = []
    for dnn in dnns:
        if "left_out" in dnn and dnn["state"] not in ("done", "failed"):
            gpus = " and ".join(f"GPU {gpu}" for gpu in dnn["left_out"])
            lines.append(f"{dnn['name']} goes on without {gpus}: it is faster so")
        straggler = dnn.get("straggler")
        if straggler is not None and dnn["gpus"]:
            late = f"{straggler['late_s']:.1f} s in its last epoch"
            if straggler["gpu"] is None:
                lines.append(f"{dnn['name']} spends most of its time summing gradients: {late}")
            else:
                lines.append(f"{dnn['name']} waits for GPU {straggler['gpu']} ({straggler['why']}): {late}")
    return ["", *lines] if lines else []


def _cause_text(dnn: DnnStatus) -> str:
    if not dnn["cause"]:
        return ""
    detail = " ".join(telling_line(dnn["detail"]).split())
    if len(detail) > _MAX_DETAIL:
        detail = f"{detail[: _MAX_DETAIL - 3]}..."
    return f"{dnn['cause']}: {detail}" if detail else dnn["cause"]


def _age_text(seconds: float) -> str:
    return f"{seconds:.0f} s" if seconds < 120 else duration_text(seconds)
