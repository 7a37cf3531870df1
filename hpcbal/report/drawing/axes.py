"""Axes and scales: round ticks, labels of values, thin lines."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from hpcbal.report.drawing.shapes import HAIR, QUIET, Sheet, fitted

_TIME_STEPS_S = (1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 10800, 21600, 43200, 86400)


@dataclass(frozen=True, slots=True)
class Scale:
    """Maps `low`..`high` linearly to the pixels `start`..`end`."""

    low: float
    high: float
    start: float
    end: float

    def __call__(self, value: float) -> float:
        span = self.high - self.low
        return self.start + (self.end - self.start) * ((value - self.low) / span if span else 0.0)


def number_ticks(low: float, high: float, most: int) -> list[float]:
    """At most `most` (>= 2) round values inside [low, high], evenly spaced."""
    if not high > low:
        return [low]
    rough = (high - low) / most
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(step for step in (power, 2 * power, 5 * power, 10 * power, 20 * power) if step >= rough)
    first = math.ceil(low / step - 1e-9)
    last = math.floor(high / step + 1e-9)
    return [round(index * step, 12) for index in range(first, last + 1)]


_EPOCH_STEPS = (1, 2, 3, 4, 5)
_PIXELS_PER_EPOCH_TICK = 45.0


def epoch_ticks(last: float, width: float) -> list[float]:
    """Whole epochs at even distances, at least two, as many as `width` pixels have room for.

    Args:
        last: the last epoch, >= 2; the first is 1.
        width: length of the axis in pixels.
    """
    most = max(2, int(width / _PIXELS_PER_EPOCH_TICK) + 1)
    power = 1
    while True:
        for step in (power * factor for factor in _EPOCH_STEPS):
            if last // step <= most:
                ticks = [float(tick) for tick in range(step, int(last) + 1, step)]
                return ticks if len(ticks) > 1 else [1.0, float(int(last))]
        power *= 10


def time_ticks(high_s: float, most: int) -> list[float]:
    """At most `most` round times from 0 to `high_s`; steps are round in seconds, minutes, hours or days."""
    if high_s <= _TIME_STEPS_S[0] * most:
        return [tick for tick in number_ticks(0.0, high_s, most) if tick <= high_s]
    step = next((step for step in _TIME_STEPS_S if high_s / step <= most), None)
    if step is None:
        day = 86400.0
        return [tick * day for tick in number_ticks(0.0, high_s / day, most)]
    return [float(tick) for tick in range(0, int(high_s) + 1, step)]


def time_label(seconds: float, span_s: float) -> str:
    """A time on an axis that is `span_s` long: `1.5 s`, `2:30 min`, `3:05 h`, `2 d 6 h`."""
    if seconds == 0.0:
        return "0"
    if span_s < 60.0:
        return f"{seconds:g} s"
    whole = round(seconds)
    if span_s < 3600.0:
        return f"{whole // 60}:{whole % 60:02d} min"
    if span_s < 2 * 86400.0:
        return f"{whole // 3600}:{whole // 60 % 60:02d} h"
    days, hours = divmod(round(whole / 3600), 24)
    return f"{days} d" + (f" {hours} h" if hours else "")


def duration_label(seconds: float) -> str:
    """A duration for users: `0.4 s`, `42 s`, `12 min 5 s`, `3 h 20 min`, `2 d 4 h`."""
    if seconds < 10.0:
        return f"{seconds:.1f} s"
    whole = round(seconds)
    for unit, small_unit, size, small in (
        ("d", "h", 86400, 3600),
        ("h", "min", 3600, 60),
        ("min", "s", 60, 1),
    ):
        if whole >= size:
            rest = whole % size // small
            return f"{whole // size} {unit}" + (f" {rest} {small_unit}" if rest else "")
    return f"{whole} s"


def number_label(value: float) -> str:
    """Three significant digits, with a thousands separator: `0.123`, `45.6`, `1,230`."""
    if value == 0.0:
        return "0"
    digits = max(0, 2 - math.floor(math.log10(abs(value))))
    return (
        f"{value:,.{digits}f}" if digits else f"{round(value, 2 - math.floor(math.log10(abs(value)))):,.0f}"
    )


def change_label(share: float) -> str:
    """A relative change in whole percent: `+8 %`, `0 %`, with a true minus sign."""
    percent = round(100.0 * share)
    return f"{percent:+d} %".replace("-", "\N{MINUS SIGN}") if percent else "0 %"


def percent_label(share: float) -> str:
    """`0 %`, `0.4 %`, `12 %`."""
    percent = 100.0 * share
    if percent and percent < 0.1:
        return "< 0.1 %"
    return f"{percent:.1f} %" if 0.0 < percent < 9.95 else f"{percent:.0f} %"


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
