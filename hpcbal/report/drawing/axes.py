"""Axes for the charts: thin ticks, few round numbers, no frames."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from hpcbal.report.drawing.scales import Scale, time_label, time_ticks
from hpcbal.report.drawing.shapes import HAIR, QUIET, Sheet, fitted

LABEL_SIZE = 11.0
AXIS_HEIGHT = 26.0
"""Room below a chart for the numbers of its horizontal axis."""


def draw_below(
    sheet: Sheet,
    scale: Scale,
    ticks: Sequence[float],
    label: Callable[[float], str],
    top: float,
    bottom: float,
    width: float,
    unit: str = "",
) -> None:
    """A horizontal axis at `bottom` of a drawing of `width`, with grid lines up to `top`.

    `unit` appears once, after the last number.
    """
    for tick in ticks:
        x = scale(tick)
        sheet.line([(x, top), (x, bottom)])
        text = label(tick) + (f" {unit}" if unit and tick == ticks[-1] else "")
        place = fitted(x, text, LABEL_SIZE, 0.0, max(width, x))
        sheet.text(place, bottom + 16.0, text, LABEL_SIZE, QUIET, "middle")


def draw_time_below(sheet: Sheet, scale: Scale, top: float, bottom: float) -> None:
    """A horizontal axis of the running time in seconds."""
    most = max(2, int((scale.end - scale.start) / 90.0))
    ticks = time_ticks(scale.high, most)
    draw_below(sheet, scale, ticks, lambda tick: time_label(tick, scale.high), top, bottom, scale.end)


def draw_left(
    sheet: Sheet,
    scale: Scale,
    ticks: Sequence[float],
    left: float,
    right: float,
    label: Callable[[float], str] = "{:,g}".format,
) -> None:
    """A vertical axis whose numbers end at `left`, with grid lines to `right`."""
    for tick in ticks:
        y = scale(tick)
        sheet.line([(left, y), (right, y)], HAIR)
        sheet.text(left - 6.0, y + 4.0, label(tick), LABEL_SIZE, QUIET, "end")


def spread(wanted: Sequence[float], gap: float, low: float, high: float) -> list[float]:
    """Places near `wanted` (ascending) that are at least `gap` apart and, if they fit, inside [low, high].

    Labels that would touch form a cluster, whose middle is at the mean of their wanted places.
    """
    clusters: list[tuple[int, float]] = []  # (size, sum of the wanted places of the first label)
    for place in wanted:
        size, total = 1, place
        while clusters and clusters[-1][1] / clusters[-1][0] + clusters[-1][0] * gap > total / size:
            before, sum_before = clusters.pop()
            total += sum_before - size * before * gap
            size += before
        clusters.append((size, total))
    places = [total / size + gap * index for size, total in clusters for index in range(size)]
    places = [max(place, low + gap * index) for index, place in enumerate(places)]
    return [min(place, high - gap * (len(places) - 1 - index)) for index, place in enumerate(places)]
