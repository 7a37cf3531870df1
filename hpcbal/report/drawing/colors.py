"""Colours that people with any kind of colour vision can distinguish, on white."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from hpcbal.report.drawing.shapes import INK

# Okabe and Ito's palette (jfly.uni-koeln.de/color, "Color Universal Design", 2008) without black and yellow
# (too faint on white), plus two greys. Neighbours in this order differ in both lightness and hue.
_HUES = ("#0072b2", "#e69f00", "#009e73", "#cc79a7", "#56b4e9", "#d55e00", "#4d4d4d", "#a6a6a6")
# More names than that: colours between the first ones, or much darker.
_MORE = ("#7a3d60", "#6b6b00", "#003f63", "#f4a6a0", "#8c6bb1", "#8a4b20", "#9ad17b", "#b8a100")
PALETTE = (*_HUES, *_MORE)

USE_COLORS: Mapping[str, str] = {
    "training": "#0072b2",
    "data": "#e69f00",
    "peers": "#f3d27a",
    "checkpoint": "#d55e00",
    "starting": "#cc79a7",
    "profiling": "#56b4e9",
    "idle": "#e6e9ec",
}
"""Colour of each of USE_KINDS."""


def colors_of(names: Iterable[str]) -> dict[str, str]:
    """Return a colour per name; with more than 16 names colours repeat, so labels are needed too."""
    return {name: PALETTE[index % len(PALETTE)] for index, name in enumerate(names)}


def ink_on(fill: str) -> str:
    """White or dark, whichever has more contrast on `fill` (#rrggbb).

    Source: relative luminance and contrast of WCAG 2.1 (the contrasts with white and dark are equal at 0.2).
    """
    channels = (int(fill[start : start + 2], 16) / 255 for start in (1, 3, 5))
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels]
    luminance = 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]
    return INK if luminance > 0.2 else "#ffffff"


def tint(fill: str) -> str:
    """`fill` (#rrggbb) mixed with twice as much white."""
    channels = (int(fill[start : start + 2], 16) for start in (1, 3, 5))
    return "#" + "".join(f"{(channel + 2 * 255) // 3:02x}" for channel in channels)
