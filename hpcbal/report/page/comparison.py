"""Render a comparison of runs as one HTML page that loads nothing else."""

from __future__ import annotations

import os

from hpcbal.report.charts.all_charts import NARROW, WIDE
from hpcbal.report.charts.curves import draw_curves
from hpcbal.report.comparing.values import Comparison
from hpcbal.report.drawing.colors import colors_of
from hpcbal.report.drawing.shapes import HAIR, INK, QUIET
from hpcbal.report.drawing.svg import FONTS, to_svg
from hpcbal.report.model import EpochPoint, JobReport, ReportData
from hpcbal.report.page.document import follow_script, page_environment
from hpcbal.telemetry.files.atomic_file import write_atomic
from hpcbal.values.metric_names import LOSS, VALIDATION


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
