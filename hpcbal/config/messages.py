"""Turn pydantic's errors into lines for the user: place, key, given, allowed, did you mean."""

from __future__ import annotations

import re
import typing
from collections.abc import Sequence
from typing import Any, Literal

from pydantic import BaseModel
from pydantic.fields import FieldInfo
from pydantic_core import ErrorDetails

from hpcbal.config.schema.dnn import INSTEAD_OF_KERAS_CALLBACKS
from hpcbal.config.schema.fields import field_at, keys_of
from hpcbal.config.schema.objective import OF_OUTPUTS, ONE
from hpcbal.config.schema.section import CUSTOM_ERROR, IMPORT_ALLOWED, is_import_path
from hpcbal.config.source.meant import did_you_mean, nearest
from hpcbal.config.source.nodes import Path, YamlNode, join_key, show
from hpcbal.config.unknown_key import unknown_key
from hpcbal.errors import MOST_PROBLEMS

_UNQUOTED = re.compile(r"[-+]?[0-9]+(?:\.[0-9]*)?(?:[eE][-+]?[0-9]+)?|true|false|null")
"""Text that means a number or a word of YAML when it is written without quotes."""
_MOST_KEYS = 6


_FORMS = (ONE, OF_OUTPUTS)
_TYPE_ERRORS = ("int_type", "float_type", "bool_type")


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
    for given in errors:
        # The names of forms of a value are no keys.
        error: ErrorDetails = {**given, "loc": tuple(each for each in given["loc"] if each not in _FORMS)}
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
    """Whether the error is a key of `args` that is not text; `keys_not_text` reports these."""
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
        _, field = field_at(model, path)
        return node.problem(f"missing key '{path[-1]}', allowed: {_allowed(field)}")
    node, _ = root.deepest(path)
    if error["type"] in ("extra_forbidden", "invalid_key"):
        return unknown_key(path, root, model)
    owner, field = field_at(model, path)
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
    if IMPORT_ALLOWED in _allowed(field):
        instead = INSTEAD_OF_KERAS_CALLBACKS.get(given.rpartition(".")[2])
        if instead is not None:
            return f"; instead of {given} use {instead}"
        path = _as_import_path(given)
        return f" (did you mean '{path}'?)" if path else ""
    choices = _choices(field.annotation)
    if _UNQUOTED.fullmatch(given) and (given in choices or error["type"] in _TYPE_ERRORS):
        return "; this is text: remove the quotes"
    return did_you_mean(given, choices)


def _as_import_path(given: str) -> str:
    """The import path that was meant by another form: `my.model`, `my/model.py:f`; empty if there is none."""
    path = given.replace(" ", "").removeprefix("./").replace(".py:", ":").replace("/", ".")
    path = path if ":" in path else ":".join(path.rsplit(".", 1))
    return path if path != given and is_import_path(path) else ""


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


def _choices(annotation: Any) -> list[str]:
    if typing.get_origin(annotation) is Literal:
        return [str(choice) for choice in typing.get_args(annotation)]
    return [choice for argument in typing.get_args(annotation) for choice in _choices(argument)]
