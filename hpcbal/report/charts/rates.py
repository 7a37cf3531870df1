"""Rates and iterations beside what was predicted of them, and shares of steps over time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from hpcbal.report.drawing.axes import (
    AXIS_HEIGHT,
    LABEL_SIZE,
    Scale,
    change_label,
    draw_below,
    draw_left,
    duration_label,
    epoch_ticks,
    number_label,
    number_ticks,
    percent_label,
    spread,
)
from hpcbal.report.drawing.names import colors_of, distinct_names
from hpcbal.report.drawing.shapes import INK, QUIET, Drawing, Sheet, text_width
from hpcbal.report.model import ReportData, SharePoint
from hpcbal.telemetry.views.table import count_text

MAX_ROWS = 24
"""If there are more comparisons than this, they are drawn as dots around a diagonal."""

_ROW = 22.0
MAX_NAMED = 6


@dataclass(frozen=True, slots=True)
class Compared:
    """A measured value beside the one that was predicted; None where there is none.

    Attributes:
        label: what it is of, shortened where needed.
        suffix: end of the label, which is never shortened.
        job: the job that it belongs to.
        of: what it is of, in a sentence.
    """

    label: str
    suffix: str
    job: str
    of: str
    predicted: float | None
    measured: float | None

    @property
    def deviation(self) -> float | None:
        """Return measured over predicted, minus 1; None if either is not known."""
        return self.measured / self.predicted - 1.0 if self.predicted and self.measured else None


@dataclass(frozen=True, slots=True)
class Words:
    """Name and title of the drawing, unit of the values, and the word for those that are not measured."""

    name: str
    title: str
    unit: str
    predicted: str


def draw_rates(data: ReportData, colors: Mapping[str, str], width: float) -> Drawing | None:
    """Draw the rates, `width` pixels wide; None if no rate has been measured."""
    slot = data.kind_of_run.slot
    rates = [
        Compared(
            rate.job,
            f" \N{MULTIPLICATION SIGN} {rate.num_slots}",
            rate.job,
            f"{rate.job} on {rate.num_slots} {slot}{'' if rate.num_slots == 1 else 's'}",
            rate.planned,
            rate.measured,
        )
        for rate in data.rates
    ]
    return _draw(Words("rates", f"Training rates, {data.name}", "samples/s", "planned"), rates, colors, width)


def draw_iterations(data: ReportData, colors: Mapping[str, str], width: float) -> Drawing | None:
    """Draw the iterations of groups of jobs, `width` pixels wide; None if none was measured."""
    groups = [
        Compared(
            " ".join(group.jobs),
            f" from {duration_label(group.start_s)}",
            group.jobs[0],
            f"{' '.join(group.jobs)} on {count_text(len(group.machines), 'machine')} "
            f"from {duration_label(group.start_s)}",
            group.predicted_s,
            group.measured_s,
        )
        for group in data.sharing
        if group.predicted_s is not None and group.measured_s is not None
    ]
    words = Words("iterations", f"Predicted and measured iterations, {data.name}", "s", "predicted")
    return _draw(words, groups, colors, width)


def _draw(
    words: Words, compared: Sequence[Compared], colors: Mapping[str, str], width: float
) -> Drawing | None:
    if all(each.measured is None for each in compared):
        return None
    if len(compared) <= MAX_ROWS:
        return _draw_rows(words, compared, colors, width)
    known = [each for each in compared if each.predicted and each.measured]
    return _draw_cloud(words, known, colors, width) if known else None


def _draw_rows(
    words: Words, compared: Sequence[Compared], colors: Mapping[str, str], width: float
) -> Drawing:
    sheet = Sheet()
    room = width * 0.34
    widest = max(text_width(each.suffix, LABEL_SIZE) for each in compared)
    names = distinct_names((each.label for each in compared), room - widest, LABEL_SIZE)
    labels = [names[each.label] + each.suffix for each in compared]
    left = max(text_width(label, LABEL_SIZE) for label in labels) + 14.0
    changes = [_deviation_label(each, words) for each in compared]
    high = max(max(each.measured or 0.0, each.predicted or 0.0) for each in compared)
    top = 24.0
    bottom = top + _ROW * len(compared)
    x = Scale(0.0, high, left, width - max(56.0, *(text_width(each, LABEL_SIZE) + 10.0 for each in changes)))
    most = max(2, int((x.end - x.start) / 80.0))
    draw_below(sheet, x, number_ticks(0.0, high, most), "{:,g}".format, top, bottom, width, words.unit)
    sheet.circle(left + 4.0, 8.0, 4.5, "#ffffff", INK)
    sheet.text(left + 13.0, 12.0, words.predicted, LABEL_SIZE, QUIET)
    after = left + 25.0 + text_width(words.predicted, LABEL_SIZE)
    sheet.circle(after, 8.0, 4.5, INK, INK)
    sheet.text(after + 9.0, 12.0, "measured", LABEL_SIZE, QUIET)
    for index, each in enumerate(compared):
        y, color = top + _ROW * (index + 0.5), colors.get(each.job, INK)
        sheet.text(left - 10.0, y + 4.0, labels[index], LABEL_SIZE, INK, "end", job=each.job)
        title = _title(each, words)
        if each.predicted is not None and each.measured is not None:
            sheet.line([(x(each.predicted), y), (x(each.measured), y)], color, 2.0, job=each.job)
        if each.predicted is not None:
            sheet.circle(x(each.predicted), y, 4.5, "#ffffff", color, job=each.job, title=title)
        if each.measured is not None:
            sheet.circle(x(each.measured), y, 4.5, color, color, job=each.job, title=title)
        sheet.text(width, y + 4.0, changes[index], LABEL_SIZE, INK, "end", job=each.job)
    return sheet.done(words.name, words.title, width, bottom + AXIS_HEIGHT)


def _draw_cloud(
    words: Words, compared: Sequence[Compared], colors: Mapping[str, str], width: float
) -> Drawing:
    sheet = Sheet()
    top, left, height = 24.0, 52.0, 360.0 if width > 600.0 else 280.0
    high = 1.03 * max(max(each.measured or 0.0, each.predicted or 0.0) for each in compared)
    x = Scale(0.0, high, left, min(width - 16.0, left + 2.0 * height))
    y = Scale(0.0, high, top + height, top)
    sheet.text(0.0, 12.0, f"measured, {words.unit}", LABEL_SIZE, QUIET)
    draw_left(sheet, y, number_ticks(0.0, high, 5), left, x.end)
    ticks = number_ticks(0.0, high, max(2, int((x.end - left) / 80.0)))
    draw_below(sheet, x, ticks, "{:,g}".format, top + height, top + height, width, words.predicted)
    sheet.line([(x(0.0), y(0.0)), (x(high), y(high))], QUIET, 1.0, dash="4 3")
    for each in compared:
        color = colors.get(each.job, INK)
        place = (x(each.predicted or 0.0), y(each.measured or 0.0))
        sheet.circle(*place, 4.0, color, "#ffffff", job=each.job, title=_title(each, words))
    _name_the_worst(sheet, words, compared, x, y, width)
    return sheet.done(words.name, words.title, width, top + height + AXIS_HEIGHT)


def _name_the_worst(
    sheet: Sheet, words: Words, compared: Sequence[Compared], x: Scale, y: Scale, width: float
) -> None:
    """Label the largest deviations, as many as there is room for."""
    taken: list[tuple[float, float, float]] = []  # (left, right, base line) of labels
    for each in sorted(compared, key=lambda each: -abs(each.deviation or 0.0))[: 3 * MAX_NAMED]:
        text = f"{each.label} {_deviation_label(each, words)}"
        room, base = text_width(text, LABEL_SIZE), y(each.measured or 0.0) + 4.0
        start = x(each.predicted or 0.0) + 8.0
        if start + room > width:
            start -= room + 16.0
        if start < x.start or any(
            left < start + room and start < right and abs(base - other) < 2.0 * LABEL_SIZE
            for left, right, other in taken
        ):
            continue
        taken.append((start, start + room, base))
        sheet.text(start, base, text, LABEL_SIZE, INK, job=each.job)
        if len(taken) == MAX_NAMED:
            return


def _deviation_label(each: Compared, words: Words) -> str:
    if each.measured is None:
        return "not measured"
    share = each.deviation
    return f"not {words.predicted}" if share is None else change_label(share)


def _title(each: Compared, words: Words) -> str:
    shown = [
        f"not {what}" if value is None else f"{what} {number_label(value)} {words.unit}"
        for what, value in ((words.predicted, each.predicted), ("measured", each.measured))
    ]
    return f"{each.of}: {', '.join(shown)}"


MAX_PANELS = 6
"""If there are more DNNs than this, those with the most equal shares are left out."""

MAX_PANELS_NAMED = 6
"""If there are more slots than this, only those with the largest and the smallest shares have names."""

_HEIGHT = 118.0
_HEAD = 34.0
_GAP = 22.0
_LABEL_GAP = 14.0
_GREY = "#c8cdd3"


def draw_shares(data: ReportData, colors: Mapping[str, str], width: float) -> Drawing | None:
    """The chart, `width` pixels wide; None if no group's steps were balanced."""
    shown = _most_uneven(data.shares)
    if not shown:
        return None
    columns = min(len(shown), 1 if width < 600.0 else 2 if len(shown) < 5 else 3)
    panel_width = (width - _GAP * (columns - 1)) / columns
    panel_height = _HEAD + _HEIGHT + AXIS_HEIGHT + 8.0
    sheet = Sheet()
    titles = distinct_names(shown, panel_width - 20.0, 12.0)
    for index, name in enumerate(shown):
        row, column = divmod(index, columns)
        left, top = column * (panel_width + _GAP), row * panel_height
        sheet.circle(left + 5.0, top + 10.0, 4.5, colors.get(name, INK), colors.get(name, INK), job=name)
        sheet.text(left + 15.0, top + 14.0, titles[name], 12.0, INK, job=name)
        _draw_panel(sheet, data, name, (left, top), panel_width)
    num_rows = -(-len(shown) // columns)
    title = "Shares of the work" if data.works else "Shares of a step"
    return sheet.done("shares", f"{title}, {data.name}", width, num_rows * panel_height)


def _most_uneven(shares: Mapping[str, Sequence[SharePoint]]) -> list[str]:
    """Names of the DNNs to draw, in the order of the config."""
    spreads = {
        name: max(max(point.by_slot.values()) - min(point.by_slot.values()) for point in points)
        for name, points in shares.items()
        if points
    }
    chosen = sorted(spreads, key=lambda name: -spreads[name])[:MAX_PANELS]
    return [name for name in spreads if name in chosen]


def _draw_panel(sheet: Sheet, data: ReportData, name: str, place: tuple[float, float], width: float) -> None:
    points = data.shares[name]
    lines = _lines(points)
    texts = _labels(data, name, lines, points[-1].epoch, width * 0.4)
    room = max(text_width(text, LABEL_SIZE) for text in texts.values()) + 16.0
    left, top = place[0] + 38.0, place[1] + _HEAD
    bottom, right = top + _HEIGHT, place[0] + width - room
    x = Scale(1.0, max(2.0, float(points[-1].epoch)), left + 4.0, right)
    most = max(share for line in lines.values() for _, share in line)
    y = Scale(0.0, min(1.0, most * 1.08), bottom, top)
    draw_left(sheet, y, number_ticks(0.0, y.high, 5), left, right, lambda tick: f"{100 * tick:.0f} %")
    ticks = epoch_ticks(x.high, right - left)
    draw_below(sheet, x, ticks, lambda tick: f"{tick:.0f}", bottom, bottom, place[0] + width, "epochs")
    hue = colors_of(str(slot) for slot in texts)
    for slot in sorted(lines, key=lambda slot: slot in texts):  # lines with names on top
        stroke = hue[str(slot)] if slot in texts else _GREY
        _draw_line(sheet, data, slot, lines[slot], x, y, stroke)
    named = sorted(texts, key=lambda slot: y(lines[slot][-1][1]))
    wanted = [y(lines[slot][-1][1]) for slot in named]
    for slot, base in zip(named, spread(wanted, _LABEL_GAP, top, bottom), strict=True):
        epoch, share = lines[slot][-1]
        sheet.line([(x(epoch) + 4.0, y(share)), (right + 5.0, base)], hue[str(slot)], 0.7, dash="1 3")
        sheet.circle(right + 7.0, base, 2.5, hue[str(slot)], hue[str(slot)])
        sheet.text(right + 12.0, base + 4.0, texts[slot], LABEL_SIZE, INK)


def _lines(points: Sequence[SharePoint]) -> dict[int, list[tuple[int, float]]]:
    """(epoch, share) by slot, in the order of the slots."""
    slots = sorted({slot for point in points for slot in point.by_slot})
    return {slot: [(p.epoch, p.by_slot[slot]) for p in points if slot in p.by_slot] for slot in slots}


def _labels(
    data: ReportData, name: str, lines: Mapping[int, Sequence[tuple[int, float]]], last: int, room: float
) -> dict[int, str]:
    """Labels of the slots that get a name, with their last shares."""
    ranked = sorted(lines, key=lambda slot: lines[slot][-1][1])
    if len(ranked) > MAX_PANELS_NAMED:
        half = MAX_PANELS_NAMED // 2
        ranked = [*ranked[:half], *ranked[-half:]]
    left_out = {each.slot for each in data.left_out if each.job == name}
    values = {}
    for slot in sorted(ranked):
        epoch, share = lines[slot][-1]
        values[slot] = percent_label(share) if epoch == last else "left out" if slot in left_out else "before"
    widest = max(text_width(f" {value}", LABEL_SIZE) for value in values.values())
    slots = distinct_names((data.slot_names[slot] for slot in values), room - widest, LABEL_SIZE)
    return {slot: f"{slots[data.slot_names[slot]]} {value}" for slot, value in values.items()}


def _draw_line(
    sheet: Sheet,
    data: ReportData,
    slot: int,
    line: Sequence[tuple[int, float]],
    x: Scale,
    y: Scale,
    stroke: str,
) -> None:
    epoch, share = line[-1]
    title = f"{data.slot_names[slot]}: {percent_label(share)} of a step in epoch {epoch}"
    places = [(x(epoch), y(share)) for epoch, share in line]
    if len(places) > 1:
        sheet.line(places, stroke, 1.0 if stroke == _GREY else 1.8, title=title)
    sheet.circle(*places[-1], 2.0 if stroke == _GREY else 2.6, stroke, stroke, title=title)
