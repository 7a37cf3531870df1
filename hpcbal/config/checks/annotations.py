"""What values the annotations of a function's parameters allow, read from its syntax tree alone.

Only simple annotations are understood: int, float, str, bool, None, Literal, and unions of these. Any other
annotation allows all values. As for type checkers, an int is also a float, and a bool is also an int.
"""

from __future__ import annotations

import ast
from dataclasses import dataclass
from functools import cache
from typing import Any

from hpcbal.config.source.suggest import did_you_mean

_PLAIN: dict[str, tuple[type, ...]] = {
    "int": (int, bool),
    "float": (float, int, bool),
    "str": (str,),
    "bool": (bool,),
    "None": (type(None),),
}
_SHOWN = {
    "int": "a whole number",
    "float": "a number",
    "str": "text",
    "bool": "true, false",
    "None": "null",
}


@dataclass(frozen=True, slots=True)
class Allowed:
    """Values that a parameter takes.

    Attributes:
        names: the plain types, in the order of the annotation.
        choices: the values of Literal.
        default_type: type of a constant default that the annotation forgets, as in `width: int = None`.
    """

    names: tuple[str, ...] = ()
    choices: tuple[Any, ...] = ()
    default_type: type | None = None

    def takes(self, value: Any) -> bool:
        """Whether the value from a configuration is allowed."""
        is_plain = any(type(value) in _PLAIN[name] for name in self.names)
        is_choice = any(type(value) is type(choice) and value == choice for choice in self.choices)
        return is_plain or is_choice or type(value) is self.default_type

    def describe(self, given: Any) -> str:
        """Text for a message: `local, sync (did you mean 'sync'?)`."""
        words = [str(choice) for choice in self.choices]
        hint = did_you_mean(given, words) if isinstance(given, str) else ""
        return ", ".join([*words, *(_SHOWN[name] for name in self.names)]) + hint


@cache
def allowed_by_name(function: ast.FunctionDef | ast.AsyncFunctionDef) -> dict[str, Allowed]:
    """What each parameter allows; parameters without a plain annotation are missing."""
    arguments = function.args
    positional = [*arguments.posonlyargs, *arguments.args]
    defaults: list[ast.expr | None] = [None] * (len(positional) - len(arguments.defaults))
    defaults += [*arguments.defaults, *arguments.kw_defaults]
    found: dict[str, Allowed] = {}
    for parameter, default in zip([*positional, *arguments.kwonlyargs], defaults, strict=True):
        parts = _parts(parameter.annotation)
        if parts is None:
            continue
        allowed = Allowed(*parts)
        if isinstance(default, ast.Constant) and not allowed.takes(default.value):
            allowed = Allowed(*parts, type(default.value))
        found[parameter.arg] = allowed
    return found


def _parts(annotation: ast.expr | None) -> tuple[tuple[str, ...], tuple[Any, ...]] | None:
    """(names of plain types, choices); None if the annotation is not understood."""
    match annotation:
        case ast.Name(name) if name in _PLAIN:
            return (name,), ()
        case ast.Constant(None):
            return ("None",), ()
        case ast.Constant(str(text)):
            return _parts(_expression(text))
        case ast.BinOp(left, ast.BitOr(), right):
            return _union([left, right])
        case ast.Subscript(ast.Name(name) | ast.Attribute(_, name), inner):
            items = inner.elts if isinstance(inner, ast.Tuple) else [inner]
            if name == "Literal" and all(isinstance(item, ast.Constant) for item in items):
                return (), tuple(item.value for item in items if isinstance(item, ast.Constant))
            if name == "Optional":
                return _union([*items, ast.Constant(None)])
            if name == "Union":
                return _union(items)
    return None


def _union(members: list[ast.expr]) -> tuple[tuple[str, ...], tuple[Any, ...]] | None:
    names: list[str] = []
    choices: list[Any] = []
    for member in members:
        parts = _parts(member)
        if parts is None:
            return None
        names += parts[0]
        choices += parts[1]
    return tuple(dict.fromkeys(names)), tuple(choices)


def _expression(text: str) -> ast.expr | None:
    try:
        return ast.parse(text, mode="eval").body
    except SyntaxError:
        return None
