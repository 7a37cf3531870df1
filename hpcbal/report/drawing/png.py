"""Write a drawing as PNG, with matplotlib's renderer."""

from __future__ import annotations

import importlib.util
import io
from typing import Any

from hpcbal.report.drawing.shapes import Circle, Drawing, Line, Rect, Shape, Text

PIXELS_PER_INCH = 100.0
SCALE = 2.0
"""Pixels of the file per pixel of the drawing; sharp on slides and in print."""

_POINTS = 72.0 / PIXELS_PER_INCH  # per pixel


def can_write_png() -> bool:
    """Whether matplotlib is installed."""
    return importlib.util.find_spec("matplotlib") is not None


def to_png(drawing: Drawing) -> bytes:
    """The content of the PNG file; needs matplotlib.

    Only matplotlib's renderer is used, not its global state or window system.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(
        figsize=(drawing.width / PIXELS_PER_INCH, drawing.height / PIXELS_PER_INCH), dpi=PIXELS_PER_INCH
    )
    FigureCanvasAgg(figure)
    axes = figure.add_axes((0.0, 0.0, 1.0, 1.0))
    axes.set_xlim(0.0, drawing.width)
    axes.set_ylim(drawing.height, 0.0)  # y increases downwards, as on a screen
    axes.axis("off")
    for order, shape in enumerate(drawing.shapes):
        _add(axes, shape, order)
    file = io.BytesIO()
    figure.savefig(file, format="png", dpi=PIXELS_PER_INCH * SCALE, facecolor="white")
    return file.getvalue()


def _add(axes: Any, shape: Shape, order: int) -> None:
    from matplotlib.patches import Ellipse, Rectangle

    match shape:
        case Rect(x, y, width, height, fill):
            axes.add_patch(Rectangle((x, y), width, height, facecolor=fill, linewidth=0.0, zorder=order))
        case Line(points, stroke, width, dash):
            style = (0.0, tuple(float(part) for part in dash.split())) if dash else "solid"
            xs, ys = zip(*points, strict=True)
            axes.plot(xs, ys, color=stroke, linewidth=width * _POINTS, linestyle=style, zorder=order)
        case Circle(x, y, radius, fill, stroke):
            size = 2.0 * radius
            axes.add_patch(
                Ellipse((x, y), size, size, facecolor=fill, edgecolor=stroke, linewidth=_POINTS, zorder=order)
            )
        case Text(x, y, text, size, fill, anchor, bold):
            align = {"start": "left", "middle": "center", "end": "right"}[anchor]
            axes.text(
                x,
                y,
                text,
                fontsize=size * _POINTS * 0.92,  # matplotlib's font is wider than the fonts of browsers
                color=fill,
                ha=align,
                va="baseline",
                weight="bold" if bold else "normal",
                zorder=order,
                parse_math=False,  # a name may contain a dollar sign
            )
