"""Draw all charts of a report for one width."""

from __future__ import annotations

from hpcbal.report.charts.bars import draw_rungs, draw_slot_use, draw_stream_load
from hpcbal.report.charts.busy import draw_busy
from hpcbal.report.charts.committee import draw_members, draw_reliability
from hpcbal.report.charts.curves import draw_curves, draw_losses
from hpcbal.report.charts.gantt import draw_gantt
from hpcbal.report.charts.rates import draw_iterations, draw_rates, draw_shares
from hpcbal.report.charts.settings import draw_settings
from hpcbal.report.drawing.names import colors_of
from hpcbal.report.drawing.shapes import Drawing
from hpcbal.report.model import ReportData

WIDE = 1040.0
NARROW = 358.0
"""Widths in pixels: a desktop's text column, and a phone of 390 pixels without its margins."""


def draw_charts(data: ReportData, width: float) -> dict[str, Drawing]:
    """The charts by name; charts without values are missing."""
    colors = colors_of(job.name for job in data.jobs)
    drawings = (
        draw_gantt(data, colors, width) if data.spans else None,
        draw_iterations(data, colors, width),
        draw_busy(data, width),
        draw_curves(data, colors, width),
        draw_losses(data, colors, width),
        draw_settings(data, colors, width),
        draw_rungs(data, width),
        draw_slot_use(data, width),
        draw_rates(data, colors, width),
        draw_shares(data, colors, width),
        draw_stream_load(data, width),
        draw_members(data, width),
        draw_reliability(data, width),
    )
    return {drawing.name: drawing for drawing in drawings if drawing is not None}
