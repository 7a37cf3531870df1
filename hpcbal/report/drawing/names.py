"""Names and colours that tell DNNs apart."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence

from hpcbal.report.drawing.shapes import CHAR_WIDTH, INK, shortened

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


ROLE_COLORS: Mapping[str, str] = {"worker": "#0072b2", "server": "#e69f00", "both": "#009e73"}
"""Colour of each role of an executor."""


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


_CUT = "\N{HORIZONTAL ELLIPSIS}"
_SEPARATORS = re.compile(r"[-_+,=@:]")


def distinct_names(names: Iterable[str], width: float, size: float, least: int = 4) -> dict[str, str]:
    """Shorten each name as `shortened` does, unless that would make two names equal.

    Names that would become equal show the values in which they differ, such as 34-0.01 for
    resnet-34-lr0.01, or else the place where they begin to differ. If there is no room for that either, they
    are numbered.

    Args:
        names: the names; repeated ones count once.
        width: pixels for each.
        size: font size.
        least: names become empty if fewer characters than this fit.

    Returns:
        The short names by name, all different, except for empty ones.
    """
    fits = int(width / (size * CHAR_WIDTH))
    labels = {name: shortened(name, width, size, least) for name in names}
    if _are_distinct(labels.values()) or fits < max(least, 4):
        return labels
    values = _values(tuple(labels))
    if _are_distinct(values) and max(map(len, values)) <= fits:
        return dict(zip(labels, values, strict=True))
    alike = [name for name, count in _counts(labels).items() if count > 1]
    start = _num_common(alike)
    for name in alike:
        labels[name] = _from(name, start, fits)
    return _numbered(labels, fits)


def _are_distinct(labels: Collection[str]) -> bool:
    return len({*labels}) == len(labels)


def _counts(labels: dict[str, str]) -> dict[str, int]:
    """How many names have the same label, by name."""
    count_by_label = Counter(labels.values())
    return {name: count_by_label[label] for name, label in labels.items()}


def _values(names: Sequence[str]) -> list[str]:
    """The parts in which names of a sweep differ, as numbers where possible; else the whole names."""
    parts = [_SEPARATORS.split(name) for name in names]
    if len({len(own) for own in parts}) > 1:
        return list(names)
    columns = [column for column in zip(*parts, strict=True) if len({*column}) > 1]
    starts = [_length_of_key(column) for column in columns]
    rows = zip(*columns, strict=True)
    return ["-".join(part[start:] for part, start in zip(row, starts, strict=True)) for row in rows]


def _length_of_key(parts: Sequence[str]) -> int:
    """Length of the letters with which all parts begin if numbers follow, as in lr0.1; otherwise 0."""
    num = _num_common(parts)
    while num and not parts[0][num - 1].isalpha():
        num -= 1
    return num if all(part[num : num + 1].isdigit() for part in parts) else 0


def _num_common(texts: Sequence[str]) -> int:
    """Number of characters with which all texts begin."""
    first, last = min(texts), max(texts)  # whatever these two share, all share
    return next((i for i, (a, b) in enumerate(zip(first, last, strict=False)) if a != b), len(first))


def _from(name: str, start: int, fits: int) -> str:
    """The name without its first `start` characters, in at most `fits` characters."""
    rest = name[start:]
    return _CUT + (rest if len(rest) < fits else rest[: fits - 2] + _CUT)


def _numbered(labels: dict[str, str], fits: int) -> dict[str, str]:
    """The labels, with numbers where they are equal."""
    result: dict[str, str] = {}
    taken: set[str] = set()
    for name, label in labels.items():
        number, text = 1, label
        while text and text in taken:
            number += 1
            mark = f"~{number}"
            text = f"{label.rstrip(_CUT)[: max(0, fits - len(mark))]}{mark}"
        taken.add(text)
        result[name] = text
    return result
