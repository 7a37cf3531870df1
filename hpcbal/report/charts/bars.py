"""Charts of bars: where DNNs were pruned, how slots spent their time, load of the preprocessors."""

from __future__ import annotations

import math
from collections.abc import Sequence

from hpcbal.report.drawing.axes import (
    AXIS_HEIGHT,
    LABEL_SIZE,
    Scale,
    draw_below,
    draw_left,
    draw_time_below,
    number_label,
    number_ticks,
    percent_label,
)
from hpcbal.report.drawing.names import USE_COLORS
from hpcbal.report.drawing.shapes import INK, QUIET, Drawing, Sheet, shortened, text_width
from hpcbal.report.model import USE_KINDS, ReportData, RoundReport, SlotUse

MAX_ROWS = 12
"""If DNNs were pruned after more different epochs than this, neighbouring epochs share a bar."""

_ROW = 22.0
_WENT_ON, _PRUNED = "#0072b2", "#e69f00"


def draw_rungs(data: ReportData, width: float) -> Drawing | None:
    """Draw, `width` pixels wide, how many DNNs reached each rung and went on; None if none was pruned."""
    rungs = sorted({job.epochs for job in data.jobs if job.state == "pruned"})
    if not rungs:
        return None
    size = math.ceil(len(rungs) / MAX_ROWS)
    bars = [(rungs[start], rungs[min(start + size, len(rungs)) - 1]) for start in range(0, len(rungs), size)]
    labels = [f"epoch {low}" if low == high else f"epochs {low} to {high}" for low, high in bars]
    left = max(text_width(label, LABEL_SIZE) for label in labels) + 10.0
    reached = [sum(job.epochs >= low for job in data.jobs) for low, _ in bars]
    counts = [
        sum(job.state == "pruned" and low <= job.epochs <= high for job in data.jobs) for low, high in bars
    ]
    sheet = Sheet()
    sheet.rect(left, 3.0, 10.0, 10.0, _WENT_ON)
    sheet.text(left + 15.0, 12.0, "trained on", LABEL_SIZE, QUIET)
    sheet.rect(left + 95.0, 3.0, 10.0, 10.0, _PRUNED)
    sheet.text(left + 110.0, 12.0, "pruned", LABEL_SIZE, QUIET)
    texts = [f"{count} of {total} pruned" for count, total in zip(counts, reached, strict=True)]
    room = max(text_width(text, LABEL_SIZE) for text in texts) + 10.0
    x = Scale(0.0, float(max(reached)), left, width - room)
    for row, (label, count, total, text) in enumerate(zip(labels, counts, reached, texts, strict=True)):
        y = 24.0 + _ROW * row
        sheet.text(left - 10.0, y + 13.0, label, LABEL_SIZE, INK, "end")
        sheet.rect(left, y + 3.0, x(total - count) - left, _ROW - 8.0, _WENT_ON)
        sheet.rect(x(total - count), y + 3.0, x(total) - x(total - count), _ROW - 8.0, _PRUNED)
        sheet.text(x(total) + 8.0, y + 13.0, text, LABEL_SIZE, INK)
    return sheet.done("rungs", f"Pruned DNNs, {data.name}", width, 28.0 + _ROW * len(rungs))


MAX_BARS = 64
"""If there are more slots than this, consecutive slots share a bar that shows their mean."""

_MAX_ROW = 20.0
_MAX_HEIGHT = 420.0


def bars_of(use: Sequence[SlotUse]) -> list[tuple[int, int, SlotUse]]:
    """At most MAX_BARS bars, as (first slot, last slot, sum of their use)."""
    size = -(-len(use) // MAX_BARS) or 1
    bars = []
    for start in range(0, len(use), size):
        some = use[start : start + size]
        seconds = {kind: sum(each.seconds.get(kind, 0.0) for each in some) for kind in USE_KINDS}
        bars.append((some[0].slot, some[-1].slot, SlotUse(some[0].slot, seconds)))
    return bars


def draw_slot_use(data: ReportData, width: float) -> Drawing | None:
    """The chart, `width` pixels wide; None if no time has passed."""
    if not data.use or data.duration_s <= 0.0:
        return None
    sheet, uses = Sheet(), data.kind_of_run.uses
    bars = bars_of(data.use)
    top = _draw_legend(sheet, data, width) + 10.0
    row = min(_MAX_ROW, _MAX_HEIGHT / len(bars))
    gap = 2.0 if row > 8.0 else 0.5
    names = [_name(data, first, last, width * 0.2) for first, last, _ in bars]
    left = max(text_width(name, LABEL_SIZE) for name in names) + 8.0
    x = Scale(0.0, 1.0, left, width - 14.0)
    bottom = top + row * len(bars)
    ticks = [0.0, 0.25, 0.5, 0.75, 1.0]
    draw_below(sheet, x, ticks, lambda tick: f"{100 * tick:.0f} %", top, bottom, width)
    every = max(1, round(14.0 / row + 0.49))
    for index, (_, _, use) in enumerate(bars):
        y = top + row * index
        if index % every == 0:
            sheet.text(left - 6.0, y + row / 2 + 4.0, names[index], LABEL_SIZE, QUIET, "end")
        begin = 0.0
        for kind in USE_KINDS:
            share = use.share(kind)
            title = f"{names[index]}: {uses.get(kind, kind)} {percent_label(share)}"
            place = x(begin)
            sheet.rect(place, y, x(begin + share) - place, row - gap, USE_COLORS[kind], title=title)
            begin += share
    title = f"How each {data.kind_of_run.slot} spent its time, {data.name}"
    return sheet.done("use", title, width, bottom + AXIS_HEIGHT)


def _name(data: ReportData, first: int, last: int, room: float) -> str:
    if first == last:
        return shortened(data.slot_names[first], room, LABEL_SIZE)
    number = data.kind_of_run.first_slot
    return f"{number + first}\N{EN DASH}{number + last}"


def _draw_legend(sheet: Sheet, data: ReportData, width: float) -> float:
    """Draw colours with their names and shares over all slots; returns the y of the last row."""
    x, y = 0.0, 12.0
    for kind in USE_KINDS:
        if data.use_share(kind) == 0.0:
            continue
        name = data.kind_of_run.uses.get(kind, kind)
        text = f"{name} {percent_label(data.use_share(kind))}"
        needed = 16.0 + text_width(text, LABEL_SIZE) + 14.0
        if x > 0.0 and x + needed > width:
            x, y = 0.0, y + 18.0
        sheet.rect(x, y - 10.0, 11.0, 11.0, USE_COLORS[kind])
        sheet.text(x + 16.0, y, text, LABEL_SIZE, INK)
        x += needed
    return y


_HEIGHT = 110.0
_COLOR = "#009e73"


def load_of(data: ReportData, each: RoundReport) -> float | None:
    """Rate of samples in a round's passes, divided by what its preprocessors can make; None if unknown."""
    one = data.preprocessing.samples_per_s
    if not one or not each.num_preprocessors or each.stream_samples_per_s is None:
        return None
    return each.stream_samples_per_s / (one * each.num_preprocessors)


def draw_stream_load(data: ReportData, width: float) -> Drawing | None:
    """The chart, `width` pixels wide; None if no round's load is known."""
    loads = [(each, load) for each in data.rounds if (load := load_of(data, each)) is not None]
    if not loads:
        return None
    sheet = Sheet()
    top, left = 20.0, 52.0
    bottom = top + _HEIGHT
    time = Scale(0.0, max(data.duration_s, 1e-9), left, width - 2.0)
    y = Scale(0.0, max(1.0, max(load for _, load in loads)), bottom, top)
    draw_left(sheet, y, number_ticks(0.0, y.high, 4), left, time.end, lambda tick: f"{100 * tick:.0f} %")
    draw_time_below(sheet, time, bottom, bottom)
    for each, load in loads:
        x, end = time(each.start_s), time(each.end_s)
        made = f"{number_label(each.stream_samples_per_s or 0.0)} samples/s"
        makers = f"{each.num_preprocessors} preprocessor{'' if each.num_preprocessors == 1 else 's'}"
        title = f"round {each.index}: {made}, {percent_label(load)} of the capacity of {makers}"
        sheet.rect(x, y(load), max(0.6, end - x - 1.0), max(1.0, bottom - y(load)), _COLOR, title=title)
        text = percent_label(load)
        if text_width(text, LABEL_SIZE) + 4.0 <= end - x:
            sheet.text((x + end) / 2, y(load) - 4.0, text, LABEL_SIZE, INK, "middle")
    return sheet.done("preprocessing", f"Load of the preprocessors, {data.name}", width, bottom + AXIS_HEIGHT)
