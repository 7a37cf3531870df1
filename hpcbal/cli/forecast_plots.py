"""Charts over the number of workers, like those of [ASGD] Sec. 4."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from hpcbal.cli.forecast_table import RIVALS, Forecast
from hpcbal.forecast.prediction import Band, Prediction
from hpcbal.report.drawing.axes import AXIS_HEIGHT, LABEL_SIZE, draw_below, draw_left
from hpcbal.report.drawing.colors import PALETTE
from hpcbal.report.drawing.scales import Scale, epoch_ticks, number_ticks
from hpcbal.report.drawing.shapes import INK, QUIET, Drawing, Sheet, text_width
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
    """Samples per second, with bands and knees, beside the rivals."""
    series = []
    for index, servers in enumerate(forecast.inputs.servers):
        points = _points(forecast, servers, lambda row: row.samples_per_s)
        series.append(Series(_label(servers), points, (index, 0), forecast.knees.get(servers)))
        for place, name in enumerate(RIVALS if forecast.rivals else ()):
            values = tuple(
                (row.num_workers, rival[name], rival[name], rival[name])
                for row, rival in zip(forecast.rows, forecast.rivals, strict=True)
                if row.num_servers == servers
            )
            label = f"{name.replace('_', ', ')}, {_label(servers)}"
            series.append(Series(label, values, (index, place + 1)))
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
