"""A drawing as a list of plain shapes, so that one description serves the page, SVG files and PNG files."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal, TypeAlias

Anchor = Literal["start", "middle", "end"]

INK = "#1f2328"
QUIET = "#59636e"  # labels of axes: 5.9 to 1 on white
HAIR = "#d8dee4"
CHAR_WIDTH = 0.62
"""Width of a character over the size of the widest font in use (DejaVu Sans), so that nothing is cut."""


@dataclass(frozen=True, slots=True)
class Rect:
    """A filled rectangle; `job` says whose it is, `title` is shown when pointed at."""

    x: float
    y: float
    width: float
    height: float
    fill: str
    job: str = ""
    title: str = ""


@dataclass(frozen=True, slots=True)
class Line:
    """An open line through `points`; `dash` as in SVG, empty for a full line."""

    points: tuple[tuple[float, float], ...]
    stroke: str
    width: float = 1.0
    dash: str = ""
    job: str = ""
    title: str = ""


@dataclass(frozen=True, slots=True)
class Circle:
    """A dot: filled with `fill`, and drawn around with `stroke`."""

    x: float
    y: float
    radius: float
    fill: str
    stroke: str
    job: str = ""
    title: str = ""


@dataclass(frozen=True, slots=True)
class Text:
    """One line of text; `y` is its base line."""

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
        name: of its file, and of its place in the page.
        title: what it shows, for people who cannot see it and for the plots.
        width, height: in pixels.
        shapes: later ones cover earlier ones.
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
    """The middle of `text`, as near to `x` as it can be without leaving [low, high]."""
    half = text_width(text, size) / 2
    return max(low + half, min(x, high - half))


def text_width(text: str, size: float) -> float:
    """About how many pixels wide `text` is."""
    return len(text) * size * CHAR_WIDTH


def shortened(text: str, width: float, size: float, least: int = 4) -> str:
    """`text`, its middle left out if it is wider than `width`; empty if fewer than `least` of it fit then."""
    fits = int(width / (size * CHAR_WIDTH))
    if len(text) <= fits:
        return text
    if fits < least:
        return ""
    tail = (fits - 1) // 2
    return f"{text[: fits - 1 - tail]}\N{HORIZONTAL ELLIPSIS}{text[len(text) - tail :]}"
