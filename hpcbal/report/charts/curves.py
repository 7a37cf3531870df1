"""Learning curves and losses: one line per DNN, with the names of the best ones at their ends."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from hpcbal.events.history import LOSS, VALIDATION, shows_more_better
from hpcbal.report.drawing.axes import (
    AXIS_HEIGHT,
    LABEL_SIZE,
    Scale,
    draw_below,
    draw_left,
    epoch_ticks,
    number_label,
    number_ticks,
    spread,
)
from hpcbal.report.drawing.names import colors_of, distinct_names
from hpcbal.report.drawing.shapes import INK, QUIET, Drawing, Sheet, text_width
from hpcbal.report.model import JobReport, ReportData
from hpcbal.telemetry.views.summary import main_metric_of, metric_words

MAX_NAMED = 8
"""If there are more than twice as many DNNs, only this many have colours, to keep them distinguishable."""

_LABEL_GAP = 15.0
_GREY = "#c8cdd3"
_FIRST_COLORS = 8  # lines with later colours are dashed, because they are less distinct
_DASH = "6 3"


def metric_of(data: ReportData) -> str | None:
    """The metric that is drawn; None if no DNN has completed an epoch."""
    epochs = [[point.metrics for point in job.curve] for job in data.jobs]
    metric = main_metric_of(epochs)
    candidates = [metric, f"{VALIDATION}{LOSS}", LOSS] if metric.startswith(VALIDATION) else [LOSS]
    return next((each for each in candidates if any(_has(job, each) for job in epochs)), None)


def _has(epochs: Iterable[Mapping[str, float | None]], metric: str) -> bool:
    return any(epoch.get(metric) is not None for epoch in epochs)


def draw_curves(data: ReportData, colors: Mapping[str, str], width: float) -> Drawing | None:
    """Draw the main metric of all DNNs, `width` pixels wide; None if there is nothing to draw.

    If there are more DNNs than labels fit, the best ones have colours and names, and the others are grey.
    """
    metric = metric_of(data)
    if metric is None:
        return None
    return _draw(data, metric, "", ("learning", "Learning curves"), colors, width)


def draw_losses(data: ReportData, colors: Mapping[str, str], width: float) -> Drawing | None:
    """Draw the validation losses, with the training losses as thin dotted lines; None if the learning curves
    show the same, or no DNN has a loss."""
    training = LOSS
    metric = f"{VALIDATION}{LOSS}"
    if not any(_has([point.metrics for point in job.curve], metric) for job in data.jobs):
        metric, training = LOSS, ""
    if metric == metric_of(data) and not training:
        return None
    return _draw(data, metric, training, ("losses", "Losses"), colors, width)


def _draw(
    data: ReportData,
    metric: str,
    beside: str,
    title: tuple[str, str],
    colors: Mapping[str, str],
    width: float,
) -> Drawing | None:
    """One line of `metric` per DNN, and a thin dotted one of the metric `beside` for those with colours."""
    lines = {job.name: _points(job, metric) for job in data.jobs}
    lines = {name: points for name, points in lines.items() if points}
    if not lines:
        return None
    height = 300.0 if width > 600.0 else 250.0
    are_many = len(lines) > 2 * MAX_NAMED
    named = _best(lines, metric, MAX_NAMED if are_many else int(height / _LABEL_GAP))
    if are_many:  # colours repeat often in the other charts, so use distinct ones here for the best
        colors = colors_of(named)
    dotted = {job.name: _points(job, beside) for job in data.jobs if job.name in named}
    share = 0.36 if width > 600.0 else 0.4
    texts = _labels({name: lines[name] for name in named}, share * width - 14.0)
    room = max(text_width(text, LABEL_SIZE) for text in texts.values()) + 16.0
    values = [value for points in (*lines.values(), *dotted.values()) for _, value in points]
    low, high = min(values), max(values)
    if low == high:
        low, high = low - 0.5 * abs(low or 1.0), high + 0.5 * abs(high or 1.0)
    margin = (high - low) * 0.04
    last_epoch = max(points[-1][0] for points in lines.values())
    top, left = 24.0, 42.0
    bottom = top + height
    x = Scale(1.0, max(2.0, float(last_epoch)), left + 4.0, width - room)
    y = Scale(low - margin, high + margin, bottom, top)
    sheet = Sheet()
    sheet.text(0.0, 12.0, metric_words(metric), LABEL_SIZE, QUIET)
    draw_left(sheet, y, number_ticks(y.low, y.high, 5), left, x.end)
    ticks = epoch_ticks(x.high, x.end - left)
    draw_below(sheet, x, ticks, lambda tick: f"{tick:.0f}", bottom, bottom, width, "epochs")
    for name, points in dotted.items():
        if len(points) > 1:
            sheet.line([(x(epoch), y(value)) for epoch, value in points], colors[name], dash="1 3", job=name)
    for name in sorted(lines, key=lambda name: name in texts):  # lines with names on top
        color = colors[name] if name in texts else _GREY
        dash = _DASH if name in list(colors)[_FIRST_COLORS:] else ""
        _draw_line(sheet, name, lines[name], x, y, color, dash)
    _draw_labels(sheet, texts, lines, x, y, colors)
    return sheet.done(title[0], f"{title[1]}, {data.name}", width, bottom + AXIS_HEIGHT)


def _points(job: JobReport, metric: str) -> list[tuple[int, float]]:
    values = ((point.epoch, point.metrics.get(metric)) for point in job.curve)
    return [(epoch, value) for epoch, value in values if value is not None]


def _best(lines: Mapping[str, list[tuple[int, float]]], metric: str, most: int) -> list[str]:
    """Names of the best lines, at most `most`, best first."""
    sign = -1.0 if shows_more_better(metric) else 1.0
    return sorted(lines, key=lambda name: min(sign * value for _, value in lines[name]))[:most]


def _labels(lines: Mapping[str, list[tuple[int, float]]], room: float) -> dict[str, str]:
    """Distinct names with their last values in at most `room` pixels; values are never shortened."""
    values = {name: f" {number_label(points[-1][1])}" for name, points in lines.items()}
    widest = max(text_width(value, LABEL_SIZE) for value in values.values())
    names = distinct_names(lines, room - widest, LABEL_SIZE)
    return {name: names[name] + value for name, value in values.items()}


def _draw_line(
    sheet: Sheet, name: str, points: list[tuple[int, float]], x: Scale, y: Scale, color: str, dash: str
) -> None:
    title = f"{name}: {number_label(points[-1][1])} after epoch {points[-1][0]}"
    places = [(x(epoch), y(value)) for epoch, value in points]
    if len(places) > 1:
        sheet.line(places, color, 1.2 if color == _GREY else 2.0, dash=dash, job=name, title=title)
    sheet.circle(*places[-1], 2.0 if color == _GREY else 3.0, color, color, job=name, title=title)


def _draw_labels(
    sheet: Sheet,
    texts: Mapping[str, str],
    lines: Mapping[str, list[tuple[int, float]]],
    x: Scale,
    y: Scale,
    colors: Mapping[str, str],
) -> None:
    names = sorted(texts, key=lambda name: y(lines[name][-1][1]))
    places = spread([y(lines[name][-1][1]) for name in names], _LABEL_GAP, y.end + 4.0, y.start)
    for name, place in zip(names, places, strict=True):
        epoch, value = lines[name][-1]
        from_x = x(epoch) + 5.0
        sheet.line([(from_x, y(value)), (x.end + 6.0, place)], colors[name], 0.7, dash="1 3", job=name)
        sheet.circle(x.end + 8.0, place, 2.5, colors[name], colors[name], job=name)
        sheet.text(x.end + 14.0, place + 4.0, texts[name], LABEL_SIZE, INK, job=name)
