"""Write a drawing as SVG: inside the page, or as a file of its own."""

from __future__ import annotations

from html import escape

from hpcbal.report.drawing.shapes import Circle, Drawing, Line, Rect, Shape, Text

FONTS = "system-ui, -apple-system, 'Segoe UI', Roboto, 'DejaVu Sans', Helvetica, Arial, sans-serif"


def to_svg(drawing: Drawing, *, standalone: bool = False) -> str:
    """The `<svg>` element; with `standalone` a whole file with its namespace, title and white ground."""
    size = f'width="{_number(drawing.width)}" height="{_number(drawing.height)}"'
    box = f'viewBox="0 0 {_number(drawing.width)} {_number(drawing.height)}"'
    label = escape(drawing.title, quote=True)
    if not standalone:
        head = f'<svg class="chart" role="img" aria-label="{label}" {size} {box}>'
        return f"{head}{''.join(map(_shape, drawing.shapes))}</svg>"
    ground = '<rect width="100%" height="100%" fill="#ffffff"/>'
    head = f'<svg xmlns="http://www.w3.org/2000/svg" font-family="{escape(FONTS)}" {size} {box}>'
    body = "\n".join(map(_shape, drawing.shapes))
    return f"{head}\n<title>{escape(drawing.title)}</title>\n{ground}\n{body}\n</svg>\n"


def _shape(shape: Shape) -> str:
    job = f' data-job="{escape(shape.job, quote=True)}"' if shape.job else ""
    match shape:
        case Rect(x, y, width, height, fill):
            place = f'x="{_number(x)}" y="{_number(y)}" width="{_number(width)}" height="{_number(height)}"'
            return _with_title("rect", f'{place} fill="{fill}"{job}', shape.title)
        case Line(points, stroke, width, dash):
            path = " ".join(f"{_number(x)},{_number(y)}" for x, y in points)
            dashed = f' stroke-dasharray="{dash}"' if dash else ""
            style = f'fill="none" stroke="{stroke}" stroke-width="{_number(width)}"{dashed}'
            return _with_title("polyline", f'points="{path}" {style}{job}', shape.title)
        case Circle(x, y, radius, fill, stroke):
            place = f'cx="{_number(x)}" cy="{_number(y)}" r="{_number(radius)}"'
            return _with_title("circle", f'{place} fill="{fill}" stroke="{stroke}"{job}', shape.title)
        case Text(x, y, text, size, fill, anchor, bold):
            place = f'x="{_number(x)}" y="{_number(y)}" font-size="{_number(size)}" fill="{fill}"'
            end = "" if anchor == "start" else f' text-anchor="{anchor}"'
            weight = ' font-weight="600"' if bold else ""
            return f"<text {place}{end}{weight}{job}>{escape(text)}</text>"


def _with_title(element: str, attributes: str, title: str) -> str:
    if not title:
        return f"<{element} {attributes}/>"
    return f"<{element} {attributes}><title>{escape(title)}</title></{element}>"


def _number(value: float) -> str:
    """Tenths of a pixel, without a trailing `.0`."""
    text = f"{value:.1f}"
    return text[:-2] if text.endswith(".0") else text
