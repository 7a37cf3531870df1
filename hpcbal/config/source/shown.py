"""Show a value of a configuration in a message, as the user would write it."""

from __future__ import annotations

import math
from typing import Any

from hpcbal.printable import shortened

_MAX_SHOWN = 60


def show(value: Any) -> str:
    """What was given, in YAML, shortened to fit one line."""
    return "nothing (null)" if value is None else shortened(_written(value), _MAX_SHOWN)


def _written(value: Any) -> str:
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    if isinstance(value, float) and not math.isfinite(value):
        return ".nan" if math.isnan(value) else ".inf" if value > 0 else "-.inf"
    if isinstance(value, dict):
        return "{" + ", ".join(f"{_written(key)}: {_written(item)}" for key, item in value.items()) + "}"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(map(_written, value)) + "]"
    return repr(value)
