"""Show values in messages as a user would write them, and suggest the words that were meant."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

from hpcbal.printable import shortened

_MAX_SHOWN = 60


def show(value: Any) -> str:
    """Write a value as YAML, shortened to fit one line."""
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


_OTHER_WORDS = {
    "lr": "learning_rate",
    "epochs": "max_epochs",
    "num_epochs": "max_epochs",
    "n_epochs": "max_epochs",
    "gpus": "per_node",
    "num_gpus": "per_node",
    "rescale": "normalize",
    "scale": "normalize",
    "callback": "callbacks",
}
"""Names that other tools have for keys and operations, with ours."""


def nearest(given: str, known: Iterable[str], cutoff: float = 0.6) -> str | None:
    """The known word that other tools call `given`, or most like it, in any case; None if none is similar."""
    import difflib  # only needed after an error

    known = list(known)
    if _OTHER_WORDS.get(given.lower()) in known:
        return _OTHER_WORDS[given.lower()]
    by_lower = {word.lower(): word for word in reversed(list(known))}
    near = difflib.get_close_matches(given.lower(), list(by_lower), n=1, cutoff=cutoff)
    return by_lower[near[0]] if near else None


def did_you_mean(given: object, known: Iterable[str]) -> str:
    """` (did you mean 'alpha'?)`, or nothing if no known word is similar."""
    word = nearest(str(given), known)
    return f" (did you mean '{word}'?)" if word is not None else ""
