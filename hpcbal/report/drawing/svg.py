"""Write a drawing as SVG, for the page or as a separate file."""

from __future__ import annotations

import xml.etree.ElementTree as ET

from hpcbal.printable import printable
from hpcbal.report.drawing.shapes import Circle, Drawing, Line, Rect, Shape, Text

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
        case Line(points, stroke, width, dash):
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
