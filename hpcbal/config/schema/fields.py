"""Walk through the sections of a configuration: their keys, and the section at a path."""

from __future__ import annotations

import typing
from collections.abc import Iterator, Mapping
from typing import Any

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from hpcbal.config.source.nodes import Path


def keys_of(model: type[BaseModel]) -> list[str]:
    """Keys as written in the file."""
    return [field.alias or name for name, field in model.model_fields.items()]


def all_keys(model: type[BaseModel], prefix: str = "") -> Iterator[str]:
    """Dotted path of every key of a model and of its sections; lists add no part."""
    for name, field in model.model_fields.items():
        key = f"{prefix}{field.alias or name}"
        yield key
        for inner in models_in(field.annotation):
            yield from all_keys(inner, f"{key}.")


def field_at(model: type[BaseModel], path: Path) -> tuple[type[BaseModel], FieldInfo | None]:
    """(innermost section, deepest key) on the path to a location in `model`; None after a key of the user."""
    owner: type[BaseModel] = model
    field: FieldInfo | None = None
    for part in path:
        if isinstance(part, int):
            continue
        section = owner if field is None else next(models_in(field.annotation), None)
        if section is None:
            break
        found = next((f for name, f in section.model_fields.items() if (f.alias or name) == part), None)
        if found is None and field is not None and _maps_names(field.annotation):
            owner, field = section, None
            continue
        if found is None:
            break
        owner, field = section, found
    inner = None if field is None else next(models_in(field.annotation), None)
    return inner or owner, field


def models_in(annotation: Any) -> Iterator[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
        return
    for argument in typing.get_args(annotation):
        yield from models_in(argument)


def _maps_names(annotation: Any) -> bool:
    """Whether it is a mapping from names of the user to sections."""
    return typing.get_origin(annotation) is Mapping
