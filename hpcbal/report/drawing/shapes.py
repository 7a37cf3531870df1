"""A drawing as a list of plain shapes, which is written to the page, SVG files and PNG files."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal, TypeAlias

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
class Line:
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


Shape: TypeAlias = Rect | Line | Circle | Text


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
        self.shapes.append(Line(tuple(points), stroke, width, dash, job, title))

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
