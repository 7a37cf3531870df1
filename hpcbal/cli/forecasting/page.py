"""A forecast as an HTML page with charts, and as a timeline."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import hpcbal
from hpcbal.cli.forecasting.inputs import Inputs
from hpcbal.cli.forecasting.text import Forecast, cells_of, conclusions
from hpcbal.forecast import simulate
from hpcbal.forecast.overhead import separate_parsing
from hpcbal.forecast.prediction import Band, Prediction
from hpcbal.forecast.simulation import Chunk, events_of
from hpcbal.report.charts.all_charts import NARROW, WIDE
from hpcbal.report.drawing.axes import (
    AXIS_HEIGHT,
    LABEL_SIZE,
    Scale,
    draw_below,
    draw_left,
    epoch_ticks,
    number_ticks,
)
from hpcbal.report.drawing.names import PALETTE
from hpcbal.report.drawing.shapes import FONTS, HAIR, INK, QUIET, Drawing, Sheet, text_width, to_svg
from hpcbal.report.page.page import page_environment
from hpcbal.telemetry.files.atomic_file import write_atomic
from hpcbal.telemetry.views.table import count_text

_LEFT, _HEIGHT, _RIGHT = 56.0, 240.0, 12.0
_KEY_LINE = 20.0
_DASHES = ("", "6 3", "2 3", "8 3 2 3")


@dataclass(frozen=True, slots=True)
class Series:
    """A line of a chart: values over the number of workers.

    Attributes:
        points: (workers, value, lower end, upper end), ascending; the ends are equal where there is no band.
        style: index of its colour, and of its dashes.
        mark: the number of workers at which to draw a circle; None: nowhere.
    """

    label: str
    points: tuple[tuple[int, float, float, float], ...]
    style: tuple[int, int]
    mark: int | None = None


def throughput(forecast: Forecast) -> list[Series]:
    """Samples per second, with bands and knees."""
    series = []
    for index, servers in enumerate(forecast.inputs.servers):
        points = _points(forecast, servers, lambda row: row.samples_per_s)
        series.append(Series(_label(servers), points, (index, 0), forecast.knees.get(servers)))
    return series


def communication(forecast: Forecast) -> list[Series]:
    """Shares of the step in percent."""
    return [
        Series(f"{name}, {_label(servers)}", _points(forecast, servers, value), (index, dash))
        for index, servers in enumerate(forecast.inputs.servers)
        for dash, (name, value) in enumerate(
            [
                ("communicating", lambda row: row.communicating.times(100.0)),
                ("exposed", lambda row: row.exposed.times(100.0)),
            ]
        )
    ]


def links(forecast: Forecast) -> list[Series]:
    """Use of the busiest server's link in percent."""
    return [
        Series(f"{name}, {_label(servers)}", _points(forecast, servers, value), (index, dash))
        for index, servers in enumerate(forecast.inputs.servers)
        for dash, (name, value) in enumerate(
            [
                ("downlink", lambda row: row.downlink_use.times(100.0)),
                ("uplink", lambda row: row.uplink_use.times(100.0)),
            ]
        )
    ]


CHARTS: dict[str, tuple[str, Callable[[Forecast], list[Series]]]] = {
    "throughput": ("Samples per second; circles: knees", throughput),
    "communication": ("Share of a step in %", communication),
    "links": ("Use of links in %", links),
}
"""Name -> (title, lines)."""


def draw_forecast(name: str, forecast: Forecast, width: float) -> Drawing:
    """Draw one of CHARTS."""
    title, series_of = CHARTS[name]
    series = series_of(forecast)
    sheet = Sheet()
    sheet.text(0.0, 12.0, title, LABEL_SIZE, QUIET)
    top = _draw_key(sheet, series, width)
    bottom = top + _HEIGHT
    most = max(point[0] for each in series for point in each.points)
    x = Scale(0.0, float(max(2, most)), _LEFT, width - _RIGHT)
    y = Scale(0.0, max(1e-9, *(point[3] for each in series for point in each.points)), bottom, top + 6.0)
    draw_left(sheet, y, number_ticks(0.0, y.high, 5), _LEFT, x.end)
    ticks = [0.0, *epoch_ticks(x.high, x.end - _LEFT)]
    draw_below(sheet, x, ticks, lambda tick: f"{tick:.0f}", bottom, bottom, width, "workers")
    for each in series:
        _draw_series(sheet, each, x, y)
    return sheet.done(name, f"{title}, {forecast.inputs.name}", width, bottom + AXIS_HEIGHT)


def _label(servers: int) -> str:
    return f"{servers} server{'' if servers == 1 else 's'}"


def _points(
    forecast: Forecast, servers: int, value: Callable[[Prediction], Band]
) -> tuple[tuple[int, float, float, float], ...]:
    bands = [(row.num_workers, value(row)) for row in forecast.rows if row.num_servers == servers]
    return tuple((workers, band.value, band.low, band.high) for workers, band in bands)


def _draw_key(sheet: Sheet, series: Sequence[Series], width: float) -> float:
    """Names of the lines, in as many rows as they need; where the chart begins."""
    x, y = _LEFT, 32.0
    for each in series:
        room = 34.0 + text_width(each.label, LABEL_SIZE) + 16.0
        if x > _LEFT and x + room > width:
            x, y = _LEFT, y + _KEY_LINE
        color = PALETTE[each.style[0] % len(PALETTE)]
        sheet.line([(x, y - 4.0), (x + 28.0, y - 4.0)], color, 2.0, dash=_DASHES[each.style[1]])
        sheet.text(x + 34.0, y, each.label, LABEL_SIZE, INK)
        x += room
    return y + 8.0


def _draw_series(sheet: Sheet, series: Series, x: Scale, y: Scale) -> None:
    color, dash = PALETTE[series.style[0] % len(PALETTE)], _DASHES[series.style[1]]
    places = [(x(float(workers)), y(value)) for workers, value, _, _ in series.points]
    if len(places) > 1:
        sheet.line(places, color, 1.6, dash=dash, title=series.label)
    for (workers, value, low, high), place in zip(series.points, places, strict=True):
        title = f"{series.label}, {count_text(workers, 'worker')}: {value:.4g}"
        if high > low:
            sheet.line([(place[0], y(low)), (place[0], y(high))], color, 1.0, title=title)
        sheet.circle(*place, 2.0, color, color, title=title)
        if workers == series.mark:
            sheet.circle(*place, 6.0, "none", color, title=f"knee: {title}")


NUM_STEPS = 10
"""Steps of the fastest worker; more would make viewers slow."""


def write_timeline(inputs: Inputs, num_workers: int, file: Path) -> None:
    """Write the first steps with so many workers and the largest number of servers.

    Raises:
        OutputError: the file cannot be written.
    """
    job = inputs.job(num_workers, max(inputs.servers))
    trace = separate_parsing(job.trace, job.parsing)
    chunks: list[Chunk] = []
    settings = replace(job.settings, num_steps=min(NUM_STEPS, job.settings.num_steps))
    simulate(trace, job.cluster, settings, chunks.append)
    events = {"traceEvents": list(events_of(chunks, trace)), "displayTimeUnit": "ms"}
    write_atomic(file, gzip.compress(json.dumps(events, separators=(",", ":")).encode(), mtime=0))


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
    return (
        page_environment()
        .get_template("forecast.html")
        .render(
            name=forecast.inputs.name,
            facts=_facts(forecast),
            conclusions=conclusions(forecast),
            charts=charts,
            rows=[cells_of(forecast, row) for row in forecast.rows],
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
