"""A drawing as a list of plain shapes, written as SVG or PNG."""

from __future__ import annotations

import importlib.util
import io
import xml.etree.ElementTree as ET
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias

from hpcbal.safe_text import printable

Anchor = Literal["start", "middle", "end"]

INK = "#1f2328"
QUIET = "#59636e"  # labels of axes: contrast 5.9 to 1 on white
HAIR = "#d8dee4"
CHAR_WIDTH = 0.62
"""Character width divided by font size, for the widest font in use (DejaVu Sans), so that all text fits."""


@dataclass(frozen=True, slots=True)
class Rect:
    """A filled rectangle; `job` is the job it belongs to, `title` is its tooltip."""

    x: float
    y: float
    width: float
    height: float
    fill: str
    job: str = ""
    title: str = ""


@dataclass(frozen=True, slots=True)
class Polyline:
    """An open line through `points`; `dash` is in SVG's format, empty for a solid line."""

    points: tuple[tuple[float, float], ...]
    stroke: str
    width: float = 1.0
    dash: str = ""
    job: str = ""
    title: str = ""


@dataclass(frozen=True, slots=True)
class Circle:
    """A dot, filled with `fill` and outlined with `stroke`."""

    x: float
    y: float
    radius: float
    fill: str
    stroke: str
    job: str = ""
    title: str = ""


@dataclass(frozen=True, slots=True)
class Text:
    """One line of text; `y` is its baseline."""

    x: float
    y: float
    text: str
    size: float = 12.0
    fill: str = INK
    anchor: Anchor = "start"
    bold: bool = False
    job: str = ""


Shape: TypeAlias = Rect | Polyline | Circle | Text


@dataclass(frozen=True, slots=True)
class Drawing:
    """A finished chart.

    Attributes:
        name: name of its file and of its section on the page.
        title: a description for screen readers and for the plots.
        width, height: size in pixels.
        shapes: the shapes; later ones cover earlier ones.
    """

    name: str
    title: str
    width: float
    height: float
    shapes: tuple[Shape, ...]


@dataclass
class Sheet:
    """Collects shapes."""

    shapes: list[Shape] = field(default_factory=list)

    def rect(self, x: float, y: float, width: float, height: float, fill: str, **rest: str) -> None:
        if width > 0.0 and height > 0.0:
            self.shapes.append(Rect(x, y, width, height, fill, **rest))

    def line(
        self,
        points: list[tuple[float, float]],
        stroke: str = HAIR,
        width: float = 1.0,
        *,
        dash: str = "",
        job: str = "",
        title: str = "",
    ) -> None:
        self.shapes.append(Polyline(tuple(points), stroke, width, dash, job, title))

    def circle(
        self, x: float, y: float, radius: float, fill: str, stroke: str, *, job: str = "", title: str = ""
    ) -> None:
        self.shapes.append(Circle(x, y, radius, fill, stroke, job, title))

    def text(
        self,
        x: float,
        y: float,
        text: str,
        size: float = 12.0,
        fill: str = INK,
        anchor: Anchor = "start",
        *,
        bold: bool = False,
        job: str = "",
    ) -> None:
        self.shapes.append(Text(x, y, text, size, fill, anchor, bold, job))

    def done(self, name: str, title: str, width: float, height: float) -> Drawing:
        return Drawing(name, title, width, height, tuple(self.shapes))


def fitted(x: float, text: str, size: float, low: float, high: float) -> float:
    """The centre of `text`, as near to `x` as possible such that the text stays inside [low, high]."""
    half = text_width(text, size) / 2
    return max(low + half, min(x, high - half))


def text_width(text: str, size: float) -> float:
    """The approximate width of `text` in pixels."""
    return len(text) * size * CHAR_WIDTH


def shortened(text: str, width: float, size: float, least: int = 4) -> str:
    """`text`, without its middle if it is wider than `width`; empty if fewer than `least` characters fit."""
    fits = int(width / (size * CHAR_WIDTH))
    if len(text) <= fits:
        return text
    if fits < least:
        return ""
    tail = (fits - 1) // 2
    return f"{text[: fits - 1 - tail]}\N{HORIZONTAL ELLIPSIS}{text[len(text) - tail :]}"


FONTS = "system-ui, -apple-system, 'Segoe UI', Roboto, 'DejaVu Sans', Helvetica, Arial, sans-serif"


def to_svg(drawing: Drawing, *, standalone: bool = False) -> str:
    """The `<svg>` element; with `standalone`, a complete file with namespace, title and white background."""
    width, height = _number(drawing.width), _number(drawing.height)
    size = {"width": width, "height": height, "viewBox": f"0 0 {width} {height}"}
    if standalone:
        root = ET.Element("svg", {"xmlns": "http://www.w3.org/2000/svg", "font-family": FONTS, **size})
        ET.SubElement(root, "title").text = printable(drawing.title)
        ET.SubElement(root, "rect", {"width": "100%", "height": "100%", "fill": "#ffffff"})
    else:
        root = ET.Element(
            "svg", {"class": "chart", "role": "img", "aria-label": printable(drawing.title), **size}
        )
    root.extend(map(_element, drawing.shapes))
    if standalone:
        ET.indent(root, "")
    return ET.tostring(root, encoding="unicode") + "\n" * standalone


def _element(shape: Shape) -> ET.Element:
    match shape:
        case Rect(x, y, width, height, fill):
            place = {"x": _number(x), "y": _number(y), "width": _number(width), "height": _number(height)}
            element = ET.Element("rect", {**place, "fill": fill})
        case Polyline(points, stroke, width, dash):
            path = " ".join(f"{_number(x)},{_number(y)}" for x, y in points)
            style = {"fill": "none", "stroke": stroke, "stroke-width": _number(width)}
            element = ET.Element("polyline", {"points": path, **style})
            if dash:
                element.set("stroke-dasharray", dash)
        case Circle(x, y, radius, fill, stroke):
            place = {"cx": _number(x), "cy": _number(y), "r": _number(radius)}
            element = ET.Element("circle", {**place, "fill": fill, "stroke": stroke})
        case Text(x, y, text, size, fill, anchor, bold):
            place = {"x": _number(x), "y": _number(y), "font-size": _number(size), "fill": fill}
            element = ET.Element("text", place)
            element.text = printable(text)
            if anchor != "start":
                element.set("text-anchor", anchor)
            if bold:
                element.set("font-weight", "600")
    if shape.job:
        element.set("data-job", printable(shape.job))
    if not isinstance(shape, Text) and shape.title:
        ET.SubElement(element, "title").text = printable(shape.title)
    return element


def _number(value: float) -> str:
    """Tenths of a pixel, without a trailing `.0`."""
    text = f"{value:.1f}"
    return text[:-2] if text.endswith(".0") else text


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
        case Polyline(points, stroke, width, dash):
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
