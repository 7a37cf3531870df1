"""The report as one HTML page that loads nothing else, written to disk with its plots."""

from __future__ import annotations

import base64
import hashlib
import math
import os
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from hpcbal.events.history import LOSS, VALIDATION
from hpcbal.report.charts.all_charts import NARROW, WIDE, draw_charts
from hpcbal.report.charts.committee import calibrated_of
from hpcbal.report.charts.curves import draw_curves, metric_of
from hpcbal.report.comparing.text import Comparison
from hpcbal.report.drawing.axes import change_label, duration_label, number_label, percent_label
from hpcbal.report.drawing.names import colors_of
from hpcbal.report.drawing.shapes import FONTS, HAIR, INK, QUIET, can_write_png, to_png, to_svg
from hpcbal.report.model import EpochPoint, JobReport, PredictedDuration, ReportData
from hpcbal.safe_text import printable
from hpcbal.telemetry.files.atomic_file import output_error, write_atomic
from hpcbal.telemetry.views.evaluation import title_of
from hpcbal.telemetry.views.folds import fold_sentences
from hpcbal.telemetry.views.summary import metric_words
from hpcbal.telemetry.views.table import count_text, early_text, key_line

if TYPE_CHECKING:
    from jinja2 import Environment


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
    states = [job.state for job in data.jobs]
    failed = early_text(states.count("pruned"), states.count("stopped"))
    failed += f", {len(data.failed)} failed" if data.failed else ""
    slot_time = duration_label(data.duration_s * data.num_slots)
    starts = f" in {len(data.start_s)} starts" if len(data.start_s) > 1 else ""
    of_run = data.kind_of_run
    shown = [
        (f"{states.count('done')} of {len(states)}", f"{of_run.job}s done{failed}"),
        (duration_label(data.duration_s), f"running time{starts}, {slot_time} of {of_run.slot} time"),
    ]
    if data.prediction is not None and data.prediction.predicted_s > 0.0:
        shown.append(_card_of(data.prediction, of_run.job))
    if data.use and data.duration_s > 0.0:
        idle = percent_label(data.use_share("idle"))
        busy = percent_label(data.use_share("training"))
        uses = of_run.uses
        shown.append((busy, f"of all {of_run.slot} time {uses['training']}; {idle} {uses['idle']}"))
    if data.preprocessing.num_bad_samples:
        shown.append((f"{data.preprocessing.num_bad_samples:,}", "broken samples left out"))
    is_ordered = data.run_kind != "jobs" or len(data.jobs) == 1  # losses of unlike apps have no order
    for job in best_first(data)[:1]:
        if job.best is not None and is_ordered:
            shown.append((number_label(job.best), f"{data.measured_by.words}, {job.name}"))
    return shown


def _card_of(prediction: PredictedDuration, job: str) -> tuple[str, str]:
    predicted_s, actual_s = prediction.predicted_s, prediction.actual_s
    if actual_s is None:
        return duration_label(predicted_s), f"predicted, if no {job} stops early"
    took = f"took {duration_label(actual_s)}, predicted {duration_label(predicted_s)} if no {job} stops early"
    return change_label(actual_s / predicted_s - 1.0), took


def best_first(data: ReportData) -> list[JobReport]:
    """The jobs, best value first; jobs without a value come last."""
    sign = -1.0 if data.measured_by.more_is_better else 1.0
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


MAX_OPEN_FAILURES = 5
"""Number of failed jobs to show, and of warnings; the others are collapsed."""

MAX_OPEN_WAITS = 8
"""Number of groups with stragglers, or with unequal samples, to show; the others are collapsed."""

MAX_OPEN_ROWS = 40
"""A longer table of jobs is collapsed and has a search field."""


def render_page(data: ReportData) -> str:
    """The whole page as text.

    The template `page.html` escapes every value and makes it printable; `to_svg` does the same for the texts
    of the charts. The page's policy names its one script by hash, so a browser runs no other.
    """
    wide, narrow = (
        {name: to_svg(drawing) for name, drawing in draw_charts(data, width).items()}
        for width in (WIDE, NARROW)
    )
    script, script_hash = follow_script()
    return (
        page_environment()
        .get_template("page.html")
        .render(
            data=data,
            wide=wide,
            narrow=narrow,
            mood=mood(data),
            cards=cards(data),
            of_run=data.kind_of_run,
            measure=data.measured_by,
            with_epochs=any(job.best_epoch is not None for job in data.jobs),
            with_losses=data.measured_by.metric not in (LOSS, VALIDATION + LOSS)
            and any(job.best_loss is not None for job in data.jobs),
            with_val_losses=any(
                VALIDATION + LOSS in point.metrics for job in data.jobs for point in job.curve
            ),
            with_kept=any(kept_text(job) for job in data.jobs),
            ranked=best_first(data),
            folds=fold_sentences({job.name: job.best for job in data.jobs}, data.measured_by.words),
            calibrated=calibrated_of(data),
            metric=metric_words(metric_of(data) or "val_accuracy"),
            colors=colors_of(job.name for job in data.jobs),
            why_names=WHY_NAMES,
            max_overhead=max((overhead.share for overhead in data.overheads), default=0.0) or 1.0,
            max_open_failures=MAX_OPEN_FAILURES,
            max_open_waits=MAX_OPEN_WAITS,
            max_open_rows=MAX_OPEN_ROWS,
            ink=INK,
            quiet=QUIET,
            hair=HAIR,
            fonts=FONTS,
            script=script,
            script_hash=script_hash,
        )
    )


def follow_script() -> tuple[str, str]:
    """The script of a page, and its hash for the page's policy."""
    script = (Path(__file__).parent / "follow.js").read_text(encoding="utf-8")
    return script, base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()


def _shown(value: object) -> object:
    """Return a value as the template writes it: the program's own markup has a type of its own."""
    return printable(value) if type(value) is str else value


@cache
def page_environment() -> Environment:
    """Return the environment that all templates of pages share: escaping, and filters for numbers."""
    from jinja2 import Environment, FileSystemLoader, StrictUndefined  # 45 ms, needed only for a page

    environment = Environment(
        loader=FileSystemLoader(Path(__file__).parent),
        autoescape=True,
        finalize=_shown,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    environment.filters |= {
        "count": count_text,
        "duration": duration_label,
        "enumerated": lambda values: list(enumerate(values)),
        "four_digits": four_digits,
        "score_title": title_of,
        "kept": kept_text,
        "percent": percent_label,
        "short_duration": short_duration,
        "key_line": key_line,
    }
    return environment


def render_comparison_page(comparison: Comparison) -> str:
    """The whole page as text; as for a report, every value is escaped and printable."""
    curves = _curves(comparison)
    colors = colors_of(job.name for job in curves.jobs)
    drawings = {width: draw_curves(curves, colors, width) for width in (WIDE, NARROW)}
    wide, narrow = ("" if drawing is None else to_svg(drawing) for drawing in drawings.values())
    script, script_hash = follow_script()
    return (
        page_environment()
        .get_template("comparison.html")
        .render(
            comparison=comparison,
            name_of=_name_of,
            metrics=comparison.metrics,
            wide=wide,
            narrow=narrow,
            colors=colors,
            ink=INK,
            quiet=QUIET,
            hair=HAIR,
            fonts=FONTS,
            script=script,
            script_hash=script_hash,
        )
    )


def write_comparison_page(comparison: Comparison, path: str | os.PathLike[str]) -> None:
    """Write the page; an existing file is replaced atomically.

    Raises:
        OutputError: if the file cannot be written.
    """
    write_atomic(path, render_comparison_page(comparison))


def _name_of(dnn: str, run: str) -> str:
    return f"{run}: {dnn}"


def _curves(comparison: Comparison) -> ReportData:
    """The learning curves of all runs, as if they were of one; of the metric that they are compared by."""
    wanted = comparison.metrics[0] if len(comparison.metrics) == 1 else ""
    is_drawn = wanted.startswith(VALIDATION) or wanted == LOSS
    jobs = tuple(
        JobReport(
            _name_of(each.dnn, each.run),
            each.state,
            each.epochs,
            each.best,
            curve=tuple(
                EpochPoint(point.epoch, {wanted: point.metrics.get(wanted)}) if is_drawn else point
                for point in each.curve
            ),
        )
        for each in comparison.dnns
    )
    return ReportData("comparison", "run", "", 0.0, (), jobs=jobs)


START_OF_PAGE = b"<!DOCTYPE html>"
"""How pages begin."""

NO_MATPLOTLIB = (
    "wrote SVG plots only, because matplotlib is not installed; for PNG plots: pip install 'hpcbal[report]'"
)


def write_page(data: ReportData, path: str | os.PathLike[str]) -> None:
    """Write the page to `path`; an existing file is replaced atomically.

    Raises:
        OutputError: if the file cannot be written.
    """
    write_atomic(path, render_page(data))


def plots_beside(page: Path) -> Path:
    """The directory of a page's plots."""
    return page.with_name(f"{page.stem}-plots")


def write_plots(data: ReportData, directory: str | os.PathLike[str]) -> list[Path]:
    """Write every chart as SVG and, if matplotlib is installed, as PNG.

    Args:
        directory: where to write; created if missing. Files with the same names are replaced.

    Returns:
        The paths of the files.

    Raises:
        OutputError: if a file or the directory cannot be written.
    """
    root = Path(directory)
    try:
        root.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise output_error(root, error, "make the directory of the plots") from error
    written = []
    for name, drawing in draw_charts(data, WIDE).items():
        contents = {"svg": to_svg(drawing, standalone=True).encode()}
        if can_write_png():
            contents["png"] = to_png(drawing)
        for suffix, content in contents.items():
            path = root / f"{name}.{suffix}"
            write_atomic(path, content)
            written.append(path)
    return written
