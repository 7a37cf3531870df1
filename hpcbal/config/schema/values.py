"""Values that people write with units: sizes, durations, percentages."""

from __future__ import annotations

import math
import re
from typing import Any

_BYTES_PER_UNIT = {
    "": 1,
    "B": 1,
    "KB": 10**3,
    "MB": 10**6,
    "GB": 10**9,
    "TB": 10**12,
    "KIB": 2**10,
    "MIB": 2**20,
    "GIB": 2**30,
    "TIB": 2**40,
}
_SIZE = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([A-Za-z]*)\s*", re.ASCII)
_CLOCK = re.compile(r"(\d{1,9}):([0-5]\d):([0-5]\d)", re.ASCII)
_PERCENT = re.compile(r"\s*(\d+(?:\.\d+)?)\s*%\s*", re.ASCII)


def parse_bytes(value: Any) -> Any:
    """Turn `"256MiB"` into bytes; return anything other than text unchanged.

    Args:
        value: an int, or text of a number and a unit (B, KB, MB, GB, TB, KiB, MiB, GiB, TiB).

    Raises:
        ValueError: if the text is not a size, or one that no computer has.
    """
    if not isinstance(value, str):
        return value
    match = _SIZE.fullmatch(value)
    if match is None or match[2].upper() not in _BYTES_PER_UNIT:
        raise ValueError(f"{value!r} is not a size")
    size = float(match[1]) * _BYTES_PER_UNIT[match[2].upper()]
    if not math.isfinite(size):
        raise ValueError(f"{value!r} is too large")
    return int(size)


def parse_duration_s(value: Any) -> Any:
    """Turn `"HH:MM:SS"` into seconds; return anything other than text unchanged.

    Raises:
        ValueError: if the text has another form.
    """
    if not isinstance(value, str):
        return value
    match = _CLOCK.fullmatch(value.strip())
    if match is None:
        raise ValueError(f"{value!r} is not HH:MM:SS")
    return float(int(match[1]) * 3600 + int(match[2]) * 60 + int(match[3]))


def percent_of(text: str) -> float:
    """The share, >= 0, that text such as `"15%"` stands for.

    Raises:
        ValueError: if the text has another form, or the share is not finite.
    """
    match = _PERCENT.fullmatch(text)
    if match is None:
        raise ValueError(f"{text!r} is not a percentage")
    share = float(match[1]) / 100.0
    if not math.isfinite(share):
        raise ValueError(f"{text!r} is too large")
    return share
