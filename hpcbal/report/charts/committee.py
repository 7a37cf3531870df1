"""The DNNs of an evaluated ensemble: what each contributes, how unlike they are, and their calibration."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from hpcbal.report.drawing.axes import (
    AXIS_HEIGHT,
    LABEL_SIZE,
    Scale,
    draw_below,
    draw_left,
    number_label,
    number_ticks,
    percent_label,
)
from hpcbal.report.drawing.names import distinct_names, ink_on
from hpcbal.report.drawing.shapes import INK, QUIET, Drawing, Sheet, shortened, text_width
from hpcbal.report.model import ReportData
from hpcbal.telemetry.views.evaluation import Bin, EvaluatedDnn, EvaluatedEnsemble, Evaluation

MAX_ROWS = 32
"""If there are more DNNs than this, those that contribute the most and the least are drawn."""

_ROW, _GAP = 22.0, 28.0
_HELPS, _HARMS, _BEFORE = "#0072b2", "#d55e00", "#8a939c"


def draw_members(data: ReportData, width: float) -> Drawing | None:
    """Draw contributions as bars, and beside them how unlike each two DNNs predict; None without any.

    The rows of both are the same DNNs.
    """
    found = data.evaluation
    if found is None or any(dnn.contribution is None for dnn in found.dnns) or len(found.dnns) < 2:
        return None
    order = sorted(range(len(found.dnns)), key=lambda index: -(found.dnns[index].contribution or 0.0))
    if len(order) > MAX_ROWS:
        order = [*order[: MAX_ROWS // 2], *order[-MAX_ROWS // 2 :]]
    is_wide = width > 600.0
    shown = [found.dnns[index] for index in order]
    names = distinct_names((dnn.name for dnn in shown), width * (0.2 if is_wide else 0.34), LABEL_SIZE)
    left = max(text_width(name, LABEL_SIZE) for name in names.values()) + 10.0
    sheet = Sheet()
    matrix_left = width * 0.56 if is_wide else left
    bars_end = matrix_left - _GAP if is_wide and found.distances else width
    top, cell = 24.0, _cell(width - matrix_left, len(shown))
    row = cell if is_wide and found.distances else _ROW
    bottom = _draw_bars(sheet, found, shown, names, (left, bars_end), top, row)
    if found.distances:
        if not is_wide:
            top = bottom + 40.0
            every = math.ceil(12.0 / cell)
            for index, dnn in list(enumerate(shown))[::every]:
                y = top + cell * (index + 0.5)
                sheet.text(left - 8.0, y + 4.0, names[dnn.name], LABEL_SIZE, INK, "end", job=dnn.name)
        bottom = max(bottom, _draw_matrix(sheet, found, order, (matrix_left, top), width))
    return sheet.done("members", f"Contributions and differences of the DNNs, {data.name}", width, bottom)


def _draw_bars(
    sheet: Sheet,
    found: Evaluation,
    shown: Sequence[EvaluatedDnn],
    names: Mapping[str, str],
    ends: tuple[float, float],
    top: float,
    row: float,
) -> float:
    """Draw what each DNN contributes; returns the y of the lower end."""
    values = [dnn.contribution or 0.0 for dnn in shown]
    texts = [_signed(value) for value in values]
    room = max(text_width(text, LABEL_SIZE) for text in texts) + 10.0
    low, high = min(0.0, *values), max(0.0, *values)
    x = Scale(low, high if high > low else low + 1.0, ends[0], ends[1] - room)
    bottom = top + row * len(shown)
    unit = "nats" if found.loss_name == "nll" else "squared error"
    sheet.text(ends[0], 12.0, f"loss of the others less that of all, {unit}", LABEL_SIZE, QUIET)
    ticks = number_ticks(x.low, x.high, max(2, int((x.end - x.start) / 80.0)))
    draw_below(sheet, x, ticks, "{:,g}".format, top, bottom, ends[1])
    for index, (dnn, value, text) in enumerate(zip(shown, values, texts, strict=True)):
        y = top + row * index
        begin, end = sorted((x(0.0), x(value)))
        title = f"{dnn.name}: without it, the mean of all is worse by {text}"
        color = _HELPS if value >= 0.0 else _HARMS
        sheet.rect(begin, y + 0.18 * row, max(1.0, end - begin), 0.64 * row, color, job=dnn.name, title=title)
        base = y + row / 2 + 4.0
        sheet.text(ends[0] - 8.0, base, names[dnn.name], LABEL_SIZE, INK, "end", job=dnn.name)
        sheet.text(ends[1], base, text, LABEL_SIZE, INK, "end", job=dnn.name)
    sheet.line([(x(0.0), top), (x(0.0), bottom)], QUIET)
    return bottom + AXIS_HEIGHT


def _cell(room: float, count: int) -> float:
    return min(_ROW, room / count)


def _draw_matrix(
    sheet: Sheet, found: Evaluation, order: Sequence[int], place: tuple[float, float], width: float
) -> float:
    """Draw how unlike each two DNNs predict, darker where they differ more; returns the lower end."""
    left, top = place
    size = _cell(width - left, len(order))
    is_values = found.loss_name == "mse"
    pairs = [found.distances[i][j] for i in order for j in order if i != j]
    low, high = min(pairs), max(pairs)
    shade = Scale(low, high if high > low else low + 1.0, 0.15, 1.0)
    label = number_label if is_values else percent_label
    sheet.text(left, top - 12.0, f"two DNNs differ in: {label(low)} to {label(high)}", LABEL_SIZE, QUIET)
    for row, i in enumerate(order):
        for column, j in enumerate(order):
            value, names = found.distances[i][j], (found.dnns[i].name, found.dnns[j].name)
            fill = _shade(0.0 if i == j else shade(value))
            x, y = left + size * column, top + size * row
            title = f"{names[0]} and {names[1]}: {label(value)}"
            sheet.rect(x, y, size - 1.0, size - 1.0, fill, job=names[0], title=title)
            short = f"{100.0 * value:.0f}"
            if not is_values and i != j and text_width(short, 10.0) + 2.0 <= size and size >= 14.0:
                sheet.text(x + (size - 1.0) / 2, y + size / 2 + 3.0, short, 10.0, ink_on(fill), "middle")
    return top + size * len(order) + 4.0


def _shade(share: float) -> str:
    """White for 0, blue for 1."""
    ends = zip((255, 255, 255), (0, 77, 128), strict=True)
    return "#" + "".join(f"{round(white + share * (blue - white)):02x}" for white, blue in ends)


def _signed(value: float) -> str:
    return (number_label(value) if value <= 0.0 else f"+{number_label(value)}").replace("-", "\N{MINUS SIGN}")


_PANEL, _HEAD = 190.0, 40.0


def draw_reliability(data: ReportData, width: float) -> Drawing | None:
    """Draw how often predictions are right by their confidence, before and after calibration.

    None where no classes are predicted.

    Source: [GUO] Fig. 4.
    """
    shown = calibrated_of(data)
    if not shown:
        return None
    columns = min(len(shown), 3 if width > 600.0 else 2)
    panel = (width - _GAP * (columns - 1)) / columns
    sheet = Sheet()
    sheet.circle(5.0, 8.0, 4.0, "#ffffff", _BEFORE)
    sheet.text(14.0, 12.0, "as predicted", LABEL_SIZE, QUIET)
    after = 30.0 + text_width("as predicted", LABEL_SIZE)
    if any(each.reliability_calibrated for each in shown):
        sheet.circle(after, 8.0, 4.0, _HELPS, _HELPS)
        sheet.text(after + 9.0, 12.0, "calibrated", LABEL_SIZE, QUIET)
    height = _HEAD + _PANEL + AXIS_HEIGHT + 8.0
    for index, each in enumerate(shown):
        row, column = divmod(index, columns)
        _draw_panel(sheet, each, (column * (panel + _GAP), 22.0 + row * height), panel)
    rows = -(-len(shown) // columns)
    title = f"Accuracy by confidence, {data.name}"
    return sheet.done("reliability", title, width, 22.0 + rows * height)


def calibrated_of(data: ReportData) -> list[EvaluatedDnn | EvaluatedEnsemble]:
    """Return the best DNN and the ensembles, where the accuracy by confidence is known."""
    found = data.evaluation
    every: list[EvaluatedDnn | EvaluatedEnsemble] = []
    if found is not None:
        every = [*([found.best_dnn] if found.best_dnn else []), *found.ensembles]
    return [each for each in every if each.reliability]


def _draw_panel(
    sheet: Sheet, each: EvaluatedDnn | EvaluatedEnsemble, place: tuple[float, float], width: float
) -> None:
    left, top = place[0] + 40.0, place[1] + _HEAD
    right, bottom = place[0] + width - 8.0, top + _PANEL
    name = each.name if isinstance(each, EvaluatedDnn) else f"{each.name} ({each.num_dnns})"
    sheet.text(place[0], place[1] + 14.0, shortened(name, width, 12.0), 12.0, INK, bold=True)
    errors = [each.scores.get("calibration_error"), each.calibrated.get("calibration_error")]
    known = [percent_label(error) for error in errors if error is not None]
    if known:
        sheet.text(place[0], place[1] + 29.0, f"error {', then '.join(known)}", LABEL_SIZE, QUIET)
    x, y = Scale(0.0, 1.0, left, right), Scale(0.0, 1.0, bottom, top)
    ticks = [0.0, 0.5, 1.0]
    draw_left(sheet, y, ticks, left, right, lambda tick: f"{100 * tick:.0f} %")
    draw_below(sheet, x, ticks, lambda tick: f"{100 * tick:.0f} %", top, bottom, place[0] + width)
    sheet.line([(x(0.0), y(0.0)), (x(1.0), y(1.0))], QUIET, 1.0, dash="4 3")
    _draw_bins(sheet, each.reliability, x, y, _BEFORE, "#ffffff", "4 3")
    _draw_bins(sheet, each.reliability_calibrated, x, y, _HELPS, _HELPS, "")


def _draw_bins(
    sheet: Sheet, bins: Sequence[Bin], x: Scale, y: Scale, stroke: str, fill: str, dash: str
) -> None:
    total = sum(count for count, _, _ in bins)
    if len(bins) > 1:
        sheet.line([(x(confidence), y(right)) for _, confidence, right in bins], stroke, 1.5, dash=dash)
    for count, confidence, right in bins:
        title = f"{percent_label(confidence)} confident, {percent_label(right)} right: {count:,} predictions"
        radius = 2.0 + 5.0 * (count / total) ** 0.5
        sheet.circle(x(confidence), y(right), radius, fill, stroke, title=title)
