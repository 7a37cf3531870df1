"""Render the report as one HTML page that loads nothing else, so it can be mailed or opened offline."""

from __future__ import annotations

import base64
import hashlib
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from hpcbal.printable import printable
from hpcbal.report.charts.all_charts import NARROW, WIDE, draw_charts
from hpcbal.report.charts.curves import metric_of
from hpcbal.report.drawing.colors import colors_of
from hpcbal.report.drawing.scales import duration_label, percent_label
from hpcbal.report.drawing.shapes import HAIR, INK, QUIET
from hpcbal.report.drawing.svg import FONTS, to_svg
from hpcbal.report.model import ReportData
from hpcbal.report.page.parts import (
    WHY_NAMES,
    best_first,
    cards,
    four_digits,
    kept_text,
    mood,
    short_duration,
)
from hpcbal.telemetry.views.evaluation import title_of
from hpcbal.telemetry.views.kinds import view_of
from hpcbal.telemetry.views.summary import metric_words
from hpcbal.telemetry.views.table import count_text, key_line
from hpcbal.values.metric_names import LOSS, VALIDATION

if TYPE_CHECKING:
    from jinja2 import Environment

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
            view=view_of(data.run_kind),
            measure=view_of(data.run_kind).measure(data.measure),
            with_epochs=any(job.best_epoch is not None for job in data.jobs),
            with_losses=any(job.best_loss is not None for job in data.jobs),
            with_val_losses=any(
                VALIDATION + LOSS in point.metrics for job in data.jobs for point in job.curve
            ),
            with_kept=any(kept_text(job) for job in data.jobs),
            ranked=best_first(data),
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
    """What the template writes for a value: the program's own markup has a type of its own."""
    return printable(value) if type(value) is str else value


@cache
def page_environment() -> Environment:
    """What the templates of pages share: escaping, and filters for numbers."""
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
        "four_digits": four_digits,
        "score_title": title_of,
        "kept": kept_text,
        "percent": percent_label,
        "short_duration": short_duration,
        "key_line": key_line,
    }
    return environment
