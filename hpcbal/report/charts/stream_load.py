"""Load of the preprocessors: the rate of each round's stream relative to what they can make."""

from __future__ import annotations

from hpcbal.report.drawing.axes import AXIS_HEIGHT, LABEL_SIZE, draw_left, draw_time_below
from hpcbal.report.drawing.scales import Scale, number_label, number_ticks, percent_label
from hpcbal.report.drawing.shapes import INK, Drawing, Sheet, text_width
from hpcbal.report.model import ReportData, RoundReport

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
