"""A comparison as tables for a terminal."""

from __future__ import annotations

from hpcbal.report.comparing.values import Comparison
from hpcbal.telemetry.files.utc import duration_text
from hpcbal.telemetry.views.table import count_text, format_table, number_text


def render_comparison(comparison: Comparison) -> str:
    """The runs, their DNNs, and the settings in which the runs differ."""
    blocks = [_runs(comparison), _dnns(comparison), _settings(comparison)]
    return "\n\n".join("\n".join(block) for block in blocks if block) + "\n"


def _runs(comparison: Comparison) -> list[str]:
    best = f"best {comparison.metrics[0]}" if len(comparison.metrics) == 1 else "best"
    headers = ["run", "state", "DNNs", best, "by", "slots", "starts", "time", "slot-hours"]
    rows = []
    for run in comparison.runs:
        cells = [run.label, run.state, run.counts, number_text(run.best), run.best_dnn or "-"]
        cells += [str(run.num_slots), str(run.starts), duration_text(run.duration_s), f"{run.slot_hours:.3f}"]
        rows.append(cells)
    return format_table(headers, rows, right={3, 5, 6, 7, 8})


def _dnns(comparison: Comparison) -> list[str]:
    if not comparison.dnns:
        return []
    one_metric = len(comparison.metrics) == 1
    best = f"best {comparison.metrics[0]}" if one_metric else "best"
    headers = ["DNN", "run", "state", "epochs", best, "in epoch", "last", "time", "slot-hours"]
    if not one_metric:
        headers.insert(4, "metric")
    rows = []
    for each in comparison.dnns:
        value = number_text(each.best) + ("*" if each.is_best else " ")
        epoch = "-" if each.best_epoch is None else str(each.best_epoch)
        cells = [each.dnn, each.run, each.state, str(each.epochs), value, epoch, number_text(each.last)]
        cells += [duration_text(each.wall_time_s), f"{each.slot_hours:.3f}"]
        if not one_metric:
            cells.insert(4, each.metric)
        rows.append(cells)
    right = {column for column in range(3, len(headers)) if headers[column] != "metric"}
    lines = format_table(headers, rows, right=right)
    if any(each.is_best for each in comparison.dnns):
        lines += ["", "* the best of the runs that have this DNN"]
    return lines


def _settings(comparison: Comparison) -> list[str]:
    if len(comparison.runs) < 2:
        return []
    if not comparison.settings:
        return ["no setting differs"] if not comparison.problems else []
    labels = [run.label for run in comparison.runs]
    rows = [
        [each.key, *(each.value_by_run.get(label, "") or "-" for label in labels)]
        for each in comparison.settings
    ]
    title = f"{count_text(len(rows), 'setting')} that differ{'s' if len(rows) == 1 else ''}"
    return format_table([title, *labels], rows)
