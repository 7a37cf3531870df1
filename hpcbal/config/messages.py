"""Turn pydantic's errors into lines for the user: place, key, given, allowed, did you mean."""

from __future__ import annotations

import re
import typing
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal

from pydantic import BaseModel
from pydantic.fields import FieldInfo
from pydantic_core import ErrorDetails

from hpcbal.config.checks.import_check import arguments_of
from hpcbal.config.listed import LISTED, Listed
from hpcbal.config.schema.document import DEFAULT_KEYS, JOB_DEFAULT_KEYS
from hpcbal.config.schema.section import CUSTOM_ERROR, Section
from hpcbal.config.source.nodes import Path, YamlNode, did_you_mean, join_key, nearest, show
from hpcbal.errors import MOST_PROBLEMS

_UNQUOTED = re.compile(r"[-+]?[0-9]+(?:\.[0-9]*)?(?:[eE][-+]?[0-9]+)?|true|false|null")
"""Text that means a number or a word of YAML when it is written without quotes."""
_MOST_KEYS = 6


_TYPE_ERRORS = ("int_type", "float_type", "bool_type")


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


def explain(errors: Sequence[ErrorDetails], root: YamlNode, model: type[BaseModel]) -> list[str]:
    """Make lines for the errors of one validation.

    Args:
        errors: errors of pydantic's `ValidationError`, for the plain values of `root`.
        root: the same values with their origins.
        model: the model that they were validated against.

    Returns:
        One line per problem, without repetitions, in the order of the file; at most `MOST_PROBLEMS` + 1.
    """
    first: dict[object, tuple[int, ErrorDetails]] = {}
    for error in errors:
        if not _is_key_in_args(error):
            first.setdefault(*_place(error, root))
    shown = sorted(first.values(), key=lambda found: found[0])[: MOST_PROBLEMS + 1]
    lines = dict.fromkeys(_explain_one(error, root, model) for _, error in shown)
    # One of the types of a union may name a limit, and the others not.
    with_limit = {line.rpartition(", at ")[0] for line in lines}
    return [line for line in lines if line not in with_limit]


def _place(error: ErrorDetails, root: YamlNode) -> tuple[object, tuple[int, ErrorDetails]]:
    """Return a key that is equal for errors with the same line for the user, and the line of the file.

    A sweep repeats an error of its body for every DNN; to explain one takes much longer than to find it.
    """
    path = tuple(error["loc"])
    node, rest = root.deepest(path)
    keys = tuple(part for part in path if not isinstance(part, int))
    line = node.where.rpartition(":")[2]
    message = error["msg"] if error["type"] == CUSTOM_ERROR else ""
    same = error["type"], node.where, node.key, rest, keys, message
    return same, (int(line) if line.isdecimal() else 0, error)


def _is_key_in_args(error: ErrorDetails) -> bool:
    """Whether the error is a key of `args` that is not text; `cross_problems` reports these."""
    path = error["loc"]
    return len(path) >= 3 and path[-3] == "args" and path[-1] == "[key]"


def _explain_one(error: ErrorDetails, root: YamlNode, model: type[BaseModel]) -> str:
    path = tuple(error["loc"])
    if error["type"] == CUSTOM_ERROR:
        context = error.get("ctx", {})
        names: Path = tuple(str(context["key"]).split(".", 1)) if context["key"] else ()
        node, rest = root.deepest(path + names)
        for part in rest:
            node = YamlNode(node.value, node.where, join_key(node.key, part))
        return node.problem(str(context["message"]))
    if error["type"] == "missing":
        node, rest = root.deepest(path[:-1])
        _, field = _field_at(model, path)
        return node.problem(f"missing key '{path[-1]}', allowed: {_allowed(field)}")
    node, _ = root.deepest(path)
    if error["type"] == "extra_forbidden":
        owner, _ = _field_at(model, path[:-1])
        known = [*keys_of(owner), *_file_only_keys(node, owner)]
        also = owner.also_allowed if issubclass(owner, Section) else ""
        hint = did_you_mean(path[-1], known)
        if not hint:
            name = str(path[-1])
            listed = LISTED.get(owner)
            hint = _elsewhere(name, model) if listed is None else _meant_in(root, path[:-1], name, listed)
        return node.problem(f"unknown key{hint}, allowed: {', '.join(known)}{also}")
    owner, field = _field_at(model, path)
    given = node.plain()
    if error["type"] in ("model_type", "model_attributes_type") and field is not None and path:
        is_item = root.deepest(path[:-1])[0].is_list and "such as" not in _allowed(field)
        allowed = (
            f"in the list, allowed: {_keys_allowed(owner)}" if is_item else f"allowed: {_allowed(field)}"
        )
        comma = "" if is_item else ","
        return node.problem(f"got {show(given)}{comma} {allowed}{_key_for(node, owner)}")
    if field is None:
        return node.problem(f"got {show(given)}, allowed: {_keys_allowed(owner)}")
    parent, rest = root.deepest(path[:-1])
    item = " in the list" if parent.is_list and not rest else ""
    allowed = f"{_allowed(field)}{_limit(error, given, field)}{_hint(error, given, field)}"
    return node.problem(f"got {show(given)}{item}, allowed: {allowed}")


def _limit(error: ErrorDetails, given: Any, field: FieldInfo | None) -> str:
    """The limit that a number is beyond, if the text for its key does not name it."""
    context, words = error.get("ctx", {}), "at most"
    limit = context.get("le")
    if limit is None and isinstance(given, int | float) and given > 0:
        limit, words = context.get("ge"), "at least"
    if limit is None or f"{limit:g}" in _allowed(field):
        return ""
    return f", {words} {limit}"


def _hint(error: ErrorDetails, given: Any, field: FieldInfo | None) -> str:
    """Suggest a value for text that is not allowed; empty without a suggestion."""
    if not isinstance(given, str) or field is None:
        return ""
    choices = _choices(field.annotation)
    if _UNQUOTED.fullmatch(given) and (given in choices or error["type"] in _TYPE_ERRORS):
        return "; this is text: remove the quotes"
    return did_you_mean(given, choices)


def _file_only_keys(node: YamlNode, owner: type[BaseModel]) -> tuple[str, ...]:
    """Keys that are allowed beside an unknown one in the file, although the section lacks them."""
    if not issubclass(owner, Section):
        return ()
    return owner.sweep_keys if node.key.startswith("sweeps.") else owner.file_only_keys


def _key_for(node: YamlNode, section: type[BaseModel]) -> str:
    """How to write the value that was given for a whole section, if one of its keys takes it."""
    given = node.value
    if not isinstance(given, str):
        return ""
    for name, field in section.model_fields.items():
        choice = nearest(given, _choices(field.annotation), cutoff=0.8)
        if choice is not None:
            key = field.alias or name
            in_set = node.where.startswith(f"--set {node.key}=")
            form = f"--set {join_key(node.key, key)}={choice}" if in_set else f"{{{key}: {choice}}}"
            return f" (did you mean '{form}'?)"
    return ""


def _allowed(field: FieldInfo | None) -> str:
    if field is None:
        return "a mapping of keys"
    if isinstance(field.annotation, type) and issubclass(field.annotation, BaseModel):
        return _keys_allowed(field.annotation)
    extra = field.json_schema_extra
    return str(extra["allowed"]) if isinstance(extra, dict) else "a mapping of keys"


def _keys_allowed(section: type[BaseModel]) -> str:
    keys = keys_of(section)
    more = f" and {len(keys) - _MOST_KEYS} more" if len(keys) > _MOST_KEYS else ""
    return f"a mapping with the keys {', '.join(keys[:_MOST_KEYS])}{more}"


def _meant_in(root: YamlNode, item: Path, name: str, listed: Listed) -> str:
    """Return the likely meaning of an unknown key in this item of a list."""
    node, rest = root.deepest(item)
    path = node.get(listed.called) if not rest and node.is_mapping else None
    return listed.meant(name, None if path is None else arguments_of(path.value, listed.contract))


def _elsewhere(name: str, model: type[BaseModel]) -> str:
    """A key with that name, or a similar one, in another section; sections of the file come first."""
    last_parts: dict[str, str] = {}
    for dotted in sorted(map(_place_in_a_file, all_keys(model)), key=lambda key: key.count(".")):
        last_parts.setdefault(dotted.rpartition(".")[2], dotted)
    near = nearest(name, last_parts, cutoff=0.8)
    return f" (did you mean '{last_parts[near]}'?)" if near is not None else ""


def _place_in_a_file(dotted: str) -> str:
    """Where a key of each item of a list is written: among the defaults of all items, or with one's name."""
    for items, default_keys in (("dnns.", DEFAULT_KEYS), ("jobs.", JOB_DEFAULT_KEYS)):
        if dotted.startswith(items):
            rest = dotted.removeprefix(items)
            return f"defaults.{rest}" if rest.partition(".")[0] in default_keys else f"{items}NAME.{rest}"
    return dotted


def _field_at(model: type[BaseModel], path: Path) -> tuple[type[BaseModel], FieldInfo | None]:
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


def _choices(annotation: Any) -> list[str]:
    if typing.get_origin(annotation) is Literal:
        return [str(choice) for choice in typing.get_args(annotation)]
    return [choice for argument in typing.get_args(annotation) for choice in _choices(argument)]
