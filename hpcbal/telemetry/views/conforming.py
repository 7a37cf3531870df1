"""Check a value from JSON against a TypedDict, without a library that takes long to load."""

from __future__ import annotations

import json
import math
import types
from typing import Any, NotRequired, Union, get_args, get_origin, get_type_hints, is_typeddict

_NAMES = {str: "text", int: "a whole number", bool: "true or false", type(None): "null", float: "a number"}
_MOST_SHOWN = 40


def misfit(value: Any, hint: Any, place: str = "") -> str | None:
    """What is wrong with a value, and where; None if it conforms.

    Keys that a TypedDict does not have are allowed: a later version may write them.

    Args:
        value: what `json.loads` returned.
        hint: a TypedDict, a list or dict of something, a union, Any, or a type of JSON.
        place: where the value is, as a dotted path.
    """
    if is_typeddict(hint):
        return _misfit_of_keys(value, hint, place)
    origin, arguments = get_origin(hint), get_args(hint)
    if origin is NotRequired:
        return misfit(value, arguments[0], place)
    if origin in (Union, types.UnionType):
        problems = [misfit(value, each, place) for each in arguments]
        return None if None in problems else problems[0]
    if origin is list:
        items = list(enumerate(value)) if isinstance(value, list) else None
        return _first_misfit(items, arguments[0], place, value, "a list")
    if origin is dict:
        items = list(value.items()) if isinstance(value, dict) else None
        return _first_misfit(items, arguments[1], place, value, "an object")
    if hint is Any or _is_plain(value, hint):
        return None
    return _refusal(place, value, _NAMES[hint])


def _misfit_of_keys(value: Any, hint: Any, place: str) -> str | None:
    if not isinstance(value, dict):
        return _refusal(place, value, "an object")
    for name, inside in get_type_hints(hint, include_extras=True).items():
        below = f"{place}.{name}" if place else name
        if name not in value:
            if name in hint.__required_keys__:
                return f"{below} is missing"
            continue
        problem = misfit(value[name], inside, below)
        if problem is not None:
            return problem
    return None


def _first_misfit(
    items: list[tuple[Any, Any]] | None, hint: Any, place: str, value: Any, allowed: str
) -> str | None:
    if items is None:
        return _refusal(place, value, allowed)
    problems = (misfit(item, hint, f"{place}.{key}") for key, item in items)
    return next((problem for problem in problems if problem is not None), None)


def _is_plain(value: Any, hint: Any) -> bool:
    """Whether a value has a type of JSON; numbers must be finite and fit a float."""
    if hint is float or hint is int:
        if isinstance(value, bool) or not isinstance(value, int if hint is int else int | float):
            return False
        return abs(value) < 1e300 and math.isfinite(value)
    return type(value) is hint


def _refusal(place: str, value: Any, allowed: str) -> str:
    text = json.dumps(value)
    shown = text if len(text) <= _MOST_SHOWN else f"{text[: _MOST_SHOWN - 3]}..."
    return f"{place or 'it'} is {shown}, allowed: {allowed}"
