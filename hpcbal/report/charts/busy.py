"""How busy cores and links were over time, with a row for each machine of parameter-server jobs."""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping

from hpcbal.report.drawing.axes import (
    AXIS_HEIGHT,
    LABEL_SIZE,
    Scale,
    draw_time_below,
    number_label,
    percent_label,
)
from hpcbal.report.drawing.names import distinct_names
from hpcbal.report.drawing.shapes import INK, QUIET, Drawing, Sheet, text_width
from hpcbal.report.model import MachineBusy, ReportData

MAX_ROWS = 16
"""If there are more machines than this, neighbouring ones share a row that shows their mean."""

_ROW, _GAP = 34.0, 6.0
_BUCKET = 4.0  # pixels
_CORES, _LINKS, _GROUND = "#56b4e9", "#d55e00", "#f3f4f6"

Bucket = tuple[float, float]
"""The mean of the cores' and of the links' use."""


def mean_over_time(busy: list[MachineBusy], duration_s: float, num_buckets: int) -> dict[int, Bucket]:
    """Return the mean use in each of some equal parts of the time, but for parts that nothing is known of."""
    sums: dict[int, list[float]] = defaultdict(lambda: [0.0, 0.0, 0.0])
    length_s = duration_s / num_buckets
    for each in busy:
        first, last = (min(num_buckets - 1, int(at_s / length_s)) for at_s in (each.start_s, each.end_s))
        for index in range(first, last + 1):
            overlap_s = min(each.end_s, (index + 1) * length_s) - max(each.start_s, index * length_s)
            if overlap_s > 0.0:
                total = sums[index]
                total[0] += overlap_s
                total[1] += overlap_s * each.cores
                total[2] += overlap_s * each.links
    return {index: (cores / seconds, links / seconds) for index, (seconds, cores, links) in sums.items()}


def draw_busy(data: ReportData, width: float) -> Drawing | None:
    """Draw the chart, `width` pixels wide; None if nothing was recorded."""
    by_slot: dict[int, list[MachineBusy]] = defaultdict(list)
    for each in data.busy:
        if each.slot < data.num_slots:
            by_slot[each.slot].append(each)
    if not by_slot or data.duration_s <= 0.0:
        return None
    slots = sorted(by_slot)
    size = -(-len(slots) // MAX_ROWS)
    parts = [slots[start : start + size] for start in range(0, len(slots), size)]
    names = distinct_names((data.slot_names[slot] for slot in slots), width * 0.2, LABEL_SIZE)
    labels = [
        names[data.slot_names[part[0]]]
        + (f" \N{EN DASH} {part[-1] + data.kind_of_run.first_slot}" if len(part) > 1 else "")
        for part in parts
    ]
    left = max(text_width(label, LABEL_SIZE) for label in labels) + 8.0
    time = Scale(0.0, data.duration_s, left, width - 2.0)
    num_buckets = max(1, int((time.end - left) / _BUCKET))
    rows = [
        mean_over_time([each for slot in part for each in by_slot[slot]], data.duration_s, num_buckets)
        for part in parts
    ]
    most = 1.0
    if data.run_kind == "paramserver":  # in bytes/s; the limit is not known
        most = max((links for row in rows for _, links in row.values()), default=0.0) or 1.0
    sheet = Sheet()
    top = _draw_legend(sheet, data, most, width) + 10.0
    bottom = top + (_ROW + _GAP) * len(rows) - _GAP
    for index, (label, row) in enumerate(zip(labels, rows, strict=True)):
        base = top + (_ROW + _GAP) * index + _ROW
        sheet.rect(left, base - _ROW, time.end - left, _ROW, _GROUND)
        sheet.text(left - 6.0, base - _ROW / 2 + 4.0, label, LABEL_SIZE, QUIET, "end")
        _draw_row(sheet, label, row, base, (left, time.end), num_buckets, most)
    draw_time_below(sheet, time, bottom, bottom)
    for start_s in data.start_s[1:]:
        sheet.line([(time(start_s), top), (time(start_s), bottom)], INK, 1.5, dash="4 3")
    title = f"Use of cores and links over time, {data.name}"
    return sheet.done("busy-over-time", title, width, bottom + AXIS_HEIGHT)


def _draw_legend(sheet: Sheet, data: ReportData, most: float, width: float) -> float:
    """Draw what the colours mean, and the means over the whole time; returns the y of the last row."""
    seconds = sum(each.end_s - each.start_s for each in data.busy) or 1.0
    cores = sum(each.cores * (each.end_s - each.start_s) for each in data.busy) / seconds
    links = sum(each.links * (each.end_s - each.start_s) for each in data.busy) / seconds
    of_links = f"links: {percent_label(links)} of the measured time"
    if data.run_kind == "paramserver":
        of_links = (
            f"links: {number_label(links / 1e6)} MB/s; the full height is {number_label(most / 1e6)} MB/s"
        )
    x, y = 0.0, 12.0
    for color, text in ((_CORES, f"cores: {percent_label(cores)} of the measured time"), (_LINKS, of_links)):
        needed = 16.0 + text_width(text, LABEL_SIZE) + 14.0
        if x > 0.0 and x + needed > width:
            x, y = 0.0, y + 18.0
        if color == _CORES:
            sheet.rect(x, y - 10.0, 11.0, 11.0, color)
        else:
            sheet.line([(x, y - 4.0), (x + 11.0, y - 4.0)], color, 2.0)
        sheet.text(x + 16.0, y, text, LABEL_SIZE, INK)
        x += needed
    return y


def _draw_row(
    sheet: Sheet,
    label: str,
    row: Mapping[int, Bucket],
    base: float,
    ends: tuple[float, float],
    num_buckets: int,
    most: float,
) -> None:
    """Draw the cores of a row as filled steps, and over them its links as lines of steps."""
    step = (ends[1] - ends[0]) / num_buckets
    for first, end in _runs(row, lambda index: round(row[index][0], 2)):
        cores = row[first][0]
        x, height = ends[0] + step * first, _ROW * min(1.0, cores)
        title = f"{label}: cores {percent_label(cores)}"
        sheet.rect(x, base - height, step * (end - first), height, _CORES, title=title)
    for first, end in _runs(row, lambda index: 0.0):
        line = []
        for index in range(first, end):
            y = base - _ROW * min(1.0, row[index][1] / most)
            line += [(ends[0] + step * index, y), (ends[0] + step * (index + 1), y)]
        sheet.line(line, _LINKS, 1.5)


def _runs(row: Mapping[int, Bucket], value_of: Callable[[int], float]) -> Iterator[tuple[int, int]]:
    """Yield the first bucket and the end of neighbours with equal values."""
    keyed = [(index, value_of(index)) for index in sorted(row)]
    for _, run in itertools.groupby(enumerate(keyed), key=lambda pair: (pair[1][0] - pair[0], pair[1][1])):
        members = [index for _, (index, _) in run]
        yield members[0], members[-1] + 1
