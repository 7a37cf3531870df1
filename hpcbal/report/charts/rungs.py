"""Where DNNs were pruned: one bar per rung."""

from __future__ import annotations

import math

from hpcbal.report.drawing.axes import LABEL_SIZE
from hpcbal.report.drawing.scales import Scale
from hpcbal.report.drawing.shapes import INK, QUIET, Drawing, Sheet, text_width
from hpcbal.report.model import ReportData

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
