"""Text and numbers of the page that are derived from the values of a report."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Literal

from hpcbal.report.drawing.scales import change_label, duration_label, number_label, percent_label
from hpcbal.report.model import JobReport, PredictedDuration, ReportData
from hpcbal.telemetry.views.kinds import view_of

WHY_NAMES: Mapping[str, str] = {
    "input": "waited for data",
    "compute": "computed longer",
    "collective": "summing gradients",
}


def mood(data: ReportData) -> Literal["bad", "good", "plain"]:
    """The style in which the page shows the state of a run."""
    if data.failed or data.state == "interrupted":
        return "bad"
    return "good" if data.state == "done" else "plain"


def cards(data: ReportData) -> list[tuple[str, str]]:
    """The most important numbers, each with its meaning."""
    num_done = sum(job.state == "done" for job in data.jobs)
    num_pruned = sum(job.state == "pruned" for job in data.jobs)
    failed = f", {num_pruned} pruned" if num_pruned else ""
    failed += f", {len(data.failed)} failed" if data.failed else ""
    slot_time = duration_label(data.duration_s * data.num_slots)
    starts = f" in {len(data.start_s)} starts" if len(data.start_s) > 1 else ""
    view = view_of(data.run_kind)
    shown = [
        (f"{num_done} of {len(data.jobs)}", f"{view.job}s done{failed}"),
        (duration_label(data.duration_s), f"running time{starts}, {slot_time} of slot time"),
    ]
    if data.prediction is not None and data.prediction.predicted_s > 0.0:
        shown.append(_card_of(data.prediction, view.job))
    if data.use and data.duration_s > 0.0:
        idle = percent_label(data.use_share("idle"))
        busy = percent_label(data.use_share("training"))
        shown.append((busy, f"of all slot time {view.training}; {idle} idle"))
    if data.preprocessing.num_bad_samples:
        shown.append((f"{data.preprocessing.num_bad_samples:,}", "broken samples left out"))
    for job in best_first(data)[:1]:
        if job.best is not None:
            shown.append((number_label(job.best), f"{view.measure(data.measure).words}, {job.name}"))
    return shown


def _card_of(prediction: PredictedDuration, job: str) -> tuple[str, str]:
    predicted_s, actual_s = prediction.predicted_s, prediction.actual_s
    if actual_s is None:
        return duration_label(predicted_s), f"predicted, if no {job} stops early"
    took = f"took {duration_label(actual_s)}, predicted {duration_label(predicted_s)} if no {job} stops early"
    return change_label(actual_s / predicted_s - 1.0), took


def best_first(data: ReportData) -> list[JobReport]:
    """The jobs, best value first; jobs without a value come last."""
    sign = -1.0 if view_of(data.run_kind).measure(data.measure).more_is_better else 1.0
    return sorted(data.jobs, key=lambda job: math.inf if job.best is None else sign * job.best)


def four_digits(value: float | None) -> str | None:
    """A metric in the format of tables; None if there is none."""
    return None if value is None else f"{value:.4f}"


def kept_text(job: JobReport) -> str:
    """The epochs whose weights are on disk: `best 7 (val_loss 0.3121), last 10`; empty if there are none."""
    parts = []
    if job.kept_best_epoch is not None:
        value = four_digits(job.kept_best_value)
        parts.append(
            f"best {job.kept_best_epoch}" + ("" if value is None else f" ({job.kept_best_metric} {value})")
        )
    if job.kept_last_epoch is not None:
        parts.append(f"last {job.kept_last_epoch}")
    return ", ".join(parts)


def short_duration(seconds: float) -> str:
    """A duration that may be as short as some milliseconds."""
    return duration_label(seconds) if seconds >= 0.1 else f"{1000.0 * seconds:.0f} ms"
