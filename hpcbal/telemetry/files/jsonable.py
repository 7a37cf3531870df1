"""Convert the values of hpcbal to values that strict JSON can hold."""

from __future__ import annotations

import dataclasses
import enum
import math
import os
from collections.abc import Mapping, Set
from types import MappingProxyType
from typing import Any


def to_jsonable(value: Any, field_names: Mapping[str, str] = MappingProxyType({})) -> Any:
    """Convert a value: dataclasses to objects, tuples and sets to lists, arrays to nested lists.

    Paths and other values become text. NaN and infinities become null: strict JSON cannot express them, and
    other languages reject what Python would write.

    Args:
        value: the value to convert.
        field_names: other names for fields of dataclasses; keys of mappings stay as they are.
    """
    if value is None or isinstance(value, bool | str):
        return str(value) if isinstance(value, str) else value
    if isinstance(value, enum.Enum):
        return to_jsonable(value.value, field_names)
    if isinstance(value, int):
        return int(value)
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else None
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {
            field_names.get(field.name, field.name): to_jsonable(getattr(value, field.name), field_names)
            for field in dataclasses.fields(value)
        }
    if isinstance(value, Mapping):
        return {str(key): to_jsonable(item, field_names) for key, item in value.items()}
    if isinstance(value, Set):
        return sorted((to_jsonable(item, field_names) for item in value), key=str)
    if isinstance(value, list | tuple):
        return [to_jsonable(item, field_names) for item in value]
    if isinstance(value, os.PathLike):
        return os.fspath(value)
    if hasattr(value, "tolist"):  # numpy scalars and arrays, without importing numpy
        return to_jsonable(value.tolist())
    return str(value)
