"""Training rates: those that the schedule assumed and those that were measured."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from hpcbal.report.drawing.axes import AXIS_HEIGHT, LABEL_SIZE, draw_below, draw_left
from hpcbal.report.drawing.names import distinct_names
from hpcbal.report.drawing.scales import Scale, change_label, number_label, number_ticks
from hpcbal.report.drawing.shapes import INK, QUIET, Drawing, Sheet, text_width
from hpcbal.report.model import RateComparison, ReportData

MAX_ROWS = 24
"""If there are more comparisons than this, they are drawn as dots around a diagonal."""

_ROW = 22.0
MAX_NAMED = 6


def draw_rates(data: ReportData, colors: Mapping[str, str], width: float) -> Drawing | None:
    """The chart, `width` pixels wide; None if no rate has been measured."""
    if all(rate.measured is None for rate in data.rates):
        return None
    if len(data.rates) <= MAX_ROWS:
        return _draw_rows(data, data.rates, colors, width)
    with_plan = [rate for rate in data.rates if rate.planned and rate.measured]
    return _draw_cloud(data, with_plan, colors, width) if with_plan else None


def deviation(rate: RateComparison) -> float | None:
    """Measured over planned, minus 1; None if either is not known."""
    return rate.measured / rate.planned - 1.0 if rate.planned and rate.measured else None


def _draw_rows(
    data: ReportData, rates: Sequence[RateComparison], colors: Mapping[str, str], width: float
) -> Drawing:
    sheet = Sheet()
    suffixes = [f" \N{MULTIPLICATION SIGN} {rate.num_gpus}" for rate in rates]
    room = width * 0.34
    widest = max(text_width(suffix, LABEL_SIZE) for suffix in suffixes)
    names = distinct_names((rate.job for rate in rates), room - widest, LABEL_SIZE)
    labels = [names[rate.job] + suffix for rate, suffix in zip(rates, suffixes, strict=True)]
    left = max(text_width(label, LABEL_SIZE) for label in labels) + 14.0
    changes = [_deviation_label(rate) for rate in rates]
    high = max(max(rate.measured or 0.0, rate.planned or 0.0) for rate in rates)
    top = 24.0
    bottom = top + _ROW * len(rates)
    x = Scale(0.0, high, left, width - max(56.0, *(text_width(each, LABEL_SIZE) + 10.0 for each in changes)))
    most = max(2, int((x.end - x.start) / 80.0))
    draw_below(sheet, x, number_ticks(0.0, high, most), "{:,g}".format, top, bottom, width, "samples/s")
    sheet.circle(left + 4.0, 8.0, 4.5, "#ffffff", INK)
    sheet.text(left + 13.0, 12.0, "planned", LABEL_SIZE, QUIET)
    sheet.circle(left + 76.0, 8.0, 4.5, INK, INK)
    sheet.text(left + 85.0, 12.0, "measured", LABEL_SIZE, QUIET)
    for index, rate in enumerate(rates):
        y, color = top + _ROW * (index + 0.5), colors.get(rate.job, INK)
        sheet.text(left - 10.0, y + 4.0, labels[index], LABEL_SIZE, INK, "end", job=rate.job)
        title = _title(rate)
        if rate.planned is not None and rate.measured is not None:
            sheet.line([(x(rate.planned), y), (x(rate.measured), y)], color, 2.0, job=rate.job)
        if rate.planned is not None:
            sheet.circle(x(rate.planned), y, 4.5, "#ffffff", color, job=rate.job, title=title)
        if rate.measured is not None:
            sheet.circle(x(rate.measured), y, 4.5, color, color, job=rate.job, title=title)
        sheet.text(width, y + 4.0, changes[index], LABEL_SIZE, INK, "end", job=rate.job)
    return sheet.done("rates", f"Training rates, {data.name}", width, bottom + AXIS_HEIGHT)


def _draw_cloud(
    data: ReportData, rates: Sequence[RateComparison], colors: Mapping[str, str], width: float
) -> Drawing:
    sheet = Sheet()
    top, left, height = 24.0, 52.0, 360.0 if width > 600.0 else 280.0
    high = 1.03 * max(max(rate.measured or 0.0, rate.planned or 0.0) for rate in rates)
    x = Scale(0.0, high, left, min(width - 16.0, left + 2.0 * height))
    y = Scale(0.0, high, top + height, top)
    sheet.text(0.0, 12.0, "measured, samples/s", LABEL_SIZE, QUIET)
    draw_left(sheet, y, number_ticks(0.0, high, 5), left, x.end)
    ticks = number_ticks(0.0, high, max(2, int((x.end - left) / 80.0)))
    draw_below(sheet, x, ticks, "{:,g}".format, top + height, top + height, width, "planned")
    sheet.line([(x(0.0), y(0.0)), (x(high), y(high))], QUIET, 1.0, dash="4 3")
    for rate in rates:
        color = colors.get(rate.job, INK)
        place = (x(rate.planned or 0.0), y(rate.measured or 0.0))
        sheet.circle(*place, 4.0, color, "#ffffff", job=rate.job, title=_title(rate))
    _name_the_worst(sheet, rates, x, y, width)
    return sheet.done("rates", f"Training rates, {data.name}", width, top + height + AXIS_HEIGHT)


def _name_the_worst(sheet: Sheet, rates: Sequence[RateComparison], x: Scale, y: Scale, width: float) -> None:
    """Label the largest deviations, as many as there is room for."""
    taken: list[tuple[float, float, float]] = []  # (left, right, base line) of labels
    for rate in sorted(rates, key=lambda rate: -abs(deviation(rate) or 0.0))[: 3 * MAX_NAMED]:
        text = f"{rate.job} {_deviation_label(rate)}"
        room, base = text_width(text, LABEL_SIZE), y(rate.measured or 0.0) + 4.0
        start = x(rate.planned or 0.0) + 8.0
        if start + room > width:
            start -= room + 16.0
        if start < x.start or any(
            left < start + room and start < right and abs(base - other) < 2.0 * LABEL_SIZE
            for left, right, other in taken
        ):
            continue
        taken.append((start, start + room, base))
        sheet.text(start, base, text, LABEL_SIZE, INK, job=rate.job)
        if len(taken) == MAX_NAMED:
            return


def _deviation_label(rate: RateComparison) -> str:
    if rate.measured is None:
        return "not measured"
    share = deviation(rate)
    return "no plan" if share is None else change_label(share)


def _title(rate: RateComparison) -> str:
    planned = "no planned rate" if rate.planned is None else f"planned {number_label(rate.planned)} samples/s"
    gpus = f"{rate.num_gpus} slot{'' if rate.num_gpus == 1 else 's'}"
    measured = (
        "not measured" if rate.measured is None else f"measured {number_label(rate.measured)} samples/s"
    )
    return f"{rate.job} on {gpus}: {planned}, {measured}"
