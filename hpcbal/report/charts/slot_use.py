"""How each slot spent its time: stacked bars of equal length."""

from __future__ import annotations

from collections.abc import Sequence

from hpcbal.report.drawing.axes import AXIS_HEIGHT, LABEL_SIZE, draw_below
from hpcbal.report.drawing.colors import USE_COLORS
from hpcbal.report.drawing.scales import Scale, percent_label
from hpcbal.report.drawing.shapes import INK, QUIET, Drawing, Sheet, shortened, text_width
from hpcbal.report.model import USE_KINDS, ReportData, SlotUse, use_name
from hpcbal.telemetry.views.kinds import view_of

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
        bars.append((some[0].gpu, some[-1].gpu, SlotUse(some[0].gpu, seconds)))
    return bars


def draw_slot_use(data: ReportData, width: float) -> Drawing | None:
    """The chart, `width` pixels wide; None if no time has passed."""
    if not data.use or data.duration_s <= 0.0:
        return None
    sheet = Sheet()
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
    view = view_of(data.run_kind)
    every = max(1, round(14.0 / row + 0.49))
    for index, (_, _, use) in enumerate(bars):
        y = top + row * index
        if index % every == 0:
            sheet.text(left - 6.0, y + row / 2 + 4.0, names[index], LABEL_SIZE, QUIET, "end")
        begin = 0.0
        for kind in USE_KINDS:
            share = use.share(kind)
            title = f"{names[index]}: {use_name(kind, view)} {percent_label(share)}"
            place = x(begin)
            sheet.rect(place, y, x(begin + share) - place, row - gap, USE_COLORS[kind], title=title)
            begin += share
    return sheet.done("use", f"How each slot spent its time, {data.name}", width, bottom + AXIS_HEIGHT)


def _name(data: ReportData, first: int, last: int, room: float) -> str:
    if first == last:
        return shortened(data.slot_names[first], room, LABEL_SIZE)
    return f"{first}\N{EN DASH}{last}"


def _draw_legend(sheet: Sheet, data: ReportData, width: float) -> float:
    """Draw colours with their names and shares over all slots; returns the y of the last row."""
    x, y = 0.0, 12.0
    view = view_of(data.run_kind)
    for kind in USE_KINDS:
        if data.use_share(kind) == 0.0:
            continue
        text = f"{use_name(kind, view)} {percent_label(data.use_share(kind))}"
        needed = 16.0 + text_width(text, LABEL_SIZE) + 14.0
        if x > 0.0 and x + needed > width:
            x, y = 0.0, y + 18.0
        sheet.rect(x, y - 10.0, 11.0, 11.0, USE_COLORS[kind])
        sheet.text(x + 16.0, y, text, LABEL_SIZE, INK)
        x += needed
    return y
