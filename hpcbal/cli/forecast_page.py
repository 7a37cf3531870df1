"""A forecast as one HTML page that loads nothing else."""

from __future__ import annotations

from pathlib import Path

import hpcbal
from hpcbal.cli.forecast_plots import CHARTS, draw_forecast
from hpcbal.cli.forecast_table import Forecast
from hpcbal.cli.forecast_text import cells_of, conclusions, number
from hpcbal.report.charts.all_charts import NARROW, WIDE
from hpcbal.report.drawing.shapes import HAIR, INK, QUIET
from hpcbal.report.drawing.svg import FONTS, to_svg
from hpcbal.report.page.document import page_environment
from hpcbal.telemetry.files.atomic_file import write_atomic


def write_forecast_page(forecast: Forecast, file: Path) -> None:
    """Write the page; an existing file is replaced atomically.

    Raises:
        OutputError: the file cannot be written.
    """
    write_atomic(file, render_forecast_page(forecast))


def render_forecast_page(forecast: Forecast) -> str:
    """The whole page as text; the template escapes every value."""
    charts = [
        (title, *(to_svg(draw_forecast(name, forecast, width)) for width in (WIDE, NARROW)))
        for name, (title, _) in CHARTS.items()
    ]
    names = list(forecast.rivals[0]) if forecast.rivals else []
    rows = [
        [*cells_of(forecast, row), *(number(forecast.rivals[index][name]) for name in names)]
        for index, row in enumerate(forecast.rows)
    ]
    return (
        page_environment()
        .get_template("forecast.html")
        .render(
            name=forecast.inputs.name,
            facts=_facts(forecast),
            conclusions=conclusions(forecast),
            charts=charts,
            rows=rows,
            rivals=names,
            ink=INK,
            quiet=QUIET,
            hair=HAIR,
            fonts=FONTS,
        )
    )


def _facts(forecast: Forecast) -> list[tuple[str, str]]:
    inputs = forecast.inputs
    settings, parsing = inputs.settings, inputs.parsing
    window = "off" if settings.window_bytes == float("inf") else f"{settings.window_bytes / 1e6:g} MB"
    rate = inputs.bytes_per_s
    return [
        ("trace", ", ".join(file.name for file in inputs.files)),
        ("operations", f"{inputs.num_operations}, {inputs.trace.num_steps} recorded steps"),
        ("in no operation", f"{1e3 * inputs.step_overhead_s:.3g} ms of each step"),
        ("samples per step", str(inputs.trace.samples_per_step)),
        (
            "bandwidth",
            "as the file's machines say" if rate is None else f"{8 * rate / 1e9:g} Gbit/s each way",
        ),
        ("order", settings.order),
        ("links carry messages", "in turn" if settings.in_turn else "side by side"),
        ("flow-control window", window),
        ("parsing", f"{parsing.s_per_byte:g} s per byte and {parsing.s_per_transfer:g} s per transfer"),
        ("simulated", f"{settings.num_steps} steps, seed {settings.seed}"),
        ("hpcbal", hpcbal.__version__),
    ]
