"""Which job held which slot when: one row per slot, one block per job, and a band of rounds above.

Where jobs share machines, the blocks of a row lie one above the other.
"""

from __future__ import annotations

import itertools
import math
from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache

from hpcbal.report.drawing.axes import AXIS_HEIGHT, LABEL_SIZE, Scale, draw_time_below, duration_label
from hpcbal.report.drawing.names import ROLE_COLORS, distinct_names, ink_on, tint
from hpcbal.report.drawing.shapes import CHAR_WIDTH, INK, QUIET, Drawing, Sheet, text_width
from hpcbal.report.model import ReportData, SlotSpan, SpanKind
from hpcbal.telemetry.views.table import count_text

MAX_ROW = 26.0
MAX_HEIGHT = 640.0
_LANE_GAP = 5.0  # pixels between rows with lanes
_BAND_HEIGHT = 18.0
_GROUND = "#f3f4f6"
_MIN_LABELLED = 11.0  # pixels of height that a name needs
_MIN_LANE = 15.0  # pixels; where lanes would be lower, not every machine has a row


@dataclass(frozen=True, slots=True)
class Block:
    """Consecutive slots first..last that one job holds for the same time."""

    job: str
    first: int
    last: int
    start_s: float
    end_s: float
    kind: SpanKind
    role: str = ""


def blocks_of(spans: tuple[SlotSpan, ...]) -> list[Block]:
    """The fewest rectangles that cover `spans`, so that thousands of slots can be drawn."""

    def key(span: SlotSpan) -> tuple[float, float, str, str, str]:
        return (span.start_s, span.end_s, span.job, span.kind, span.role)

    blocks = []
    for _, group in itertools.groupby(sorted(spans, key=lambda span: (key(span), span.slot)), key=key):
        members = list(group)
        for run in _runs([span.slot for span in members]):
            some = members[0]
            blocks.append(Block(some.job, run[0], run[-1], some.start_s, some.end_s, some.kind, some.role))
    return blocks


def lanes_of(blocks: Sequence[Block]) -> list[int]:
    """Return the lowest lane that is free for each block; they are in the order of their starts."""
    free_s: dict[int, list[float]] = defaultdict(list)  # by slot, from when on each of its lanes is free
    lanes = []
    for block in blocks:
        rows = [free_s[slot] for slot in range(block.first, block.last + 1)]
        lane = next(
            lane
            for lane in itertools.count()
            if all(lane >= len(row) or row[lane] <= block.start_s for row in rows)
        )
        for row in rows:
            row.extend([0.0] * (lane + 1 - len(row)))
            row[lane] = block.end_s
        lanes.append(lane)
    return lanes


def _runs(numbers: list[int]) -> Iterator[list[int]]:
    """Split an ascending list where a number is missing."""
    for _, run in itertools.groupby(enumerate(numbers), key=lambda pair: pair[1] - pair[0]):
        yield [number for _, number in run]


def draw_gantt(data: ReportData, colors: Mapping[str, str], width: float) -> Drawing:
    """The chart, `width` pixels wide; never much higher than MAX_HEIGHT, for any number of slots."""
    sheet = Sheet()
    blocks = blocks_of(data.spans)
    lanes = lanes_of(blocks)
    num_lanes = max(lanes, default=0) + 1
    slots = list(range(data.num_slots))
    if num_lanes > 1 and (every := math.ceil(data.num_slots * num_lanes * _MIN_LANE / MAX_HEIGHT)) > 1:
        slots = slots[every // 2 :: every]
    row = min(max(MAX_ROW, _MIN_LANE * num_lanes), MAX_HEIGHT / max(1, len(slots)))
    label_room = width * 0.2
    names = distinct_names(data.slot_names, label_room, LABEL_SIZE)
    left = max((text_width(name, LABEL_SIZE) for name in names.values()), default=0.0) + 8.0
    time = Scale(0.0, max(data.duration_s, 1e-9), left, width - 2.0)
    top = _BAND_HEIGHT + 4.0 if data.rounds else 1.0
    bottom = top + row * len(slots)
    sheet.rect(left, top, time.end - left, bottom - top, _GROUND)
    draw_time_below(sheet, time, top, bottom)
    _draw_rounds(sheet, data, time, top, bottom)
    every = max(1, round(14.0 / row + 0.49))
    for index, slot in list(enumerate(slots))[::every]:
        y = top + row * (index + 0.5)
        sheet.text(left - 6.0, y + 4.0, names[data.slot_names[slot]], LABEL_SIZE, QUIET, "end")

    @cache
    def names_in(characters: int) -> dict[str, str]:
        """Short names of all jobs for a block with room for so many characters."""
        return distinct_names(colors, (characters + 0.5) * LABEL_SIZE * CHAR_WIDTH, LABEL_SIZE, least=8)

    gap = 1.0 if row > 6.0 else 0.0  # between blocks, if there is room
    for block, lane in zip(blocks, lanes, strict=True):
        color = ROLE_COLORS.get(block.role) or colors.get(block.job, "#a6a6a6")
        if num_lanes == 1:
            place = (top + row * block.first, row * (block.last - block.first + 1) - gap)
            _draw_block(sheet, data, block, time, place, color, names_in)
            continue
        height = (row - _LANE_GAP) / num_lanes
        for index in range(bisect_left(slots, block.first), bisect_right(slots, block.last)):
            place = (top + row * index + height * lane, height - 1.0)
            _draw_block(sheet, data, block, time, place, color, names_in)
    _draw_starts(sheet, data, time, top, bottom)
    title = f"Use of the {data.kind_of_run.slot}s over time, {data.name}"
    return sheet.done("slots", title, width, bottom + AXIS_HEIGHT)


def _draw_block(
    sheet: Sheet,
    data: ReportData,
    block: Block,
    time: Scale,
    place: tuple[float, float],
    color: str,
    names_in: Callable[[int], Mapping[str, str]],
) -> None:
    x, (y, height) = time(block.start_s), place
    width = max(0.6, time(block.end_s) - x - 1.0)
    fill = color if block.kind == "training" else tint(color)
    slots = data.slot_names[block.first]
    if block.last > block.first:
        slots += f" to {data.slot_names[block.last]}"
    what = ", profiling" if block.kind == "profiling" else f", {block.role}" if block.role else ""
    title = f"{block.job}{what}: {slots}, {duration_label(block.end_s - block.start_s)}"
    sheet.rect(x, y, width, height, fill, job=block.job, title=title)
    fits = int((width - 8.0) / (LABEL_SIZE * CHAR_WIDTH))
    label = block.role or block.job
    name = label if len(label) <= fits else names_in(fits).get(label, "")
    if name and height >= _MIN_LABELLED:
        base = y + height / 2 + LABEL_SIZE * 0.36
        sheet.text(x + 4.0, base, name, LABEL_SIZE, ink_on(fill), job=block.job)


def _draw_rounds(sheet: Sheet, data: ReportData, time: Scale, top: float, bottom: float) -> None:
    for each in data.rounds:
        x, end = time(each.start_s), time(each.end_s)
        sheet.line([(x, top), (x, bottom)], "#c2c8cf")
        lasted = duration_label(each.end_s - each.start_s)
        title = f"round {each.index}: {count_text(each.num_jobs, data.kind_of_run.job)}, {lasted}"
        sheet.rect(x, 0.0, max(0.6, end - x - 1.0), _BAND_HEIGHT, "#e6e9ec", title=title)
        for text in (f"round {each.index}", str(each.index)):
            if text_width(text, LABEL_SIZE) + 6.0 <= end - x:
                sheet.text((x + end) / 2, 13.0, text, LABEL_SIZE, INK, "middle")
                break


def _draw_starts(sheet: Sheet, data: ReportData, time: Scale, top: float, bottom: float) -> None:
    text = "resumed"
    room, base = text_width(text, LABEL_SIZE) + 6.0, bottom - 5.0
    free_from = 0.0
    for start_s in data.start_s[1:]:
        x = time(start_s)
        sheet.line([(x, top), (x, bottom + 4.0)], INK, 1.5, dash="4 3")
        left = x + 2.0 if x + 2.0 + room <= time.end else x - 2.0 - room
        if left < free_from:
            continue
        free_from = left + room
        sheet.rect(left, base - 11.0, room, 15.0, "#ffffff")
        sheet.text(left + 3.0, base, text, LABEL_SIZE, INK)
