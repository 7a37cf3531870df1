"""Read the allowed arguments of a function or class from its syntax tree.

Only simple annotations are understood: int, float, str, bool, None, Literal, and unions of these. Any other
annotation allows all values. As for type checkers, an int is also a float, and a bool is also an int.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from inspect import Parameter, Signature
from typing import Any

from hpcbal.config.source.meant import did_you_mean
from hpcbal.safe_text import shortened

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
    """Return the values that each parameter allows; parameters without a plain annotation are missing."""
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


_KEEP_SIGNATURE = frozenset({"keras_export", "register_keras_serializable", "cache", "lru_cache"})
"""Decorators, by their last name, after which a function still takes the arguments that its `def` shows."""

Function = ast.FunctionDef | ast.AsyncFunctionDef


class _Source:
    """A default value, shown as it is written."""

    def __init__(self, value: ast.expr) -> None:
        self._text = ast.unparse(value)

    def __repr__(self) -> str:
        return self._text


def function_of(definition: ast.stmt) -> Function | None:
    """The function whose arguments a caller of `definition` gives: itself, or the `__init__` of a class.

    Returns: None if the arguments are unknown: an unknown decorator, a metaclass, no `__init__` of its own.
    """
    if isinstance(definition, Function):
        return definition if _keeps_signature(definition.decorator_list) else None
    if not isinstance(definition, ast.ClassDef):
        return None
    if definition.keywords or not _keeps_signature(definition.decorator_list):
        return None
    methods = {item.name: item for item in definition.body if isinstance(item, ast.FunctionDef)}
    init = methods.get("__init__")
    return init if init is not None and "__new__" not in methods and not init.decorator_list else None


def signature_of(function: Function, *, is_method: bool) -> Signature | None:
    """The signature; without `self` for a method. None for a method that has no named first argument."""
    arguments = function.args
    parameters: list[Parameter] = []
    positional = [
        *((a, Parameter.POSITIONAL_ONLY) for a in arguments.posonlyargs),
        *((a, Parameter.POSITIONAL_OR_KEYWORD) for a in arguments.args),
    ]
    no_default: list[ast.expr | None] = [None] * (len(positional) - len(arguments.defaults))
    for (argument, kind), default in zip(positional, [*no_default, *arguments.defaults], strict=True):
        parameters.append(_parameter(argument, kind, default))
    if is_method:
        if not parameters:
            return None
        del parameters[0]
    if arguments.vararg is not None:
        parameters.append(_parameter(arguments.vararg, Parameter.VAR_POSITIONAL, None))
    for argument, default in zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True):
        parameters.append(_parameter(argument, Parameter.KEYWORD_ONLY, default))
    if arguments.kwarg is not None:
        parameters.append(_parameter(arguments.kwarg, Parameter.VAR_KEYWORD, None))
    return Signature(parameters)


def _parameter(argument: ast.arg, kind: object, default: ast.expr | None) -> Parameter:
    value = Parameter.empty if default is None else _Source(default)
    return Parameter(argument.arg, kind, default=value)  # type: ignore[arg-type]


def _keeps_signature(decorators: list[ast.expr]) -> bool:
    for decorator in decorators:
        named = decorator.func if isinstance(decorator, ast.Call) else decorator
        last = named.attr if isinstance(named, ast.Attribute) else getattr(named, "id", "")
        if last not in _KEEP_SIGNATURE:
            return False
    return True


_MAX_SHOWN = 40
_LITERALS = (ast.Constant, ast.JoinedStr, ast.List, ast.Tuple, ast.Dict, ast.Set)


def why_uncallable(tree: ast.Module, name: str) -> str | None:
    """Why a name of a module is neither a function nor a class that returns what is needed.

    Args:
        tree: of the module.
        name: as in the import path.

    Returns: such as `'size' is 3`; None if it may be right, as when something else may bind the name again.
    """
    found = [why for statement in tree.body if (why := _why_not(statement, name)) is not None]
    return found[0] if found and sum(bound == name for bound in _bound_names(tree)) == 1 else None


def _why_not(statement: ast.stmt, name: str) -> str | None:
    """The same for one statement at the top level."""
    match statement:
        case ast.Assign(targets=targets, value=value) if any(_is_name(target, name) for target in targets):
            return f"'{name}' is {_shown(value)}" if _is_literal(value) else None
        case ast.AnnAssign(target=target, value=ast.expr() as value) if _is_name(target, name):
            return f"'{name}' is {_shown(value)}" if _is_literal(value) else None
        case ast.FunctionDef() | ast.AsyncFunctionDef() if statement.name == name:
            if function_of(statement) is None:  # its decorator may make anything of it
                return None
            if isinstance(statement, ast.AsyncFunctionDef):
                return f"'{name}' is an async function"
            has_yield = any(isinstance(node, ast.Yield | ast.YieldFrom) for node in _own_nodes(statement))
            return f"'{name}' is a generator function (it has a yield)" if has_yield else None
        case _:
            return None


def _is_name(target: ast.expr, name: str) -> bool:
    return isinstance(target, ast.Name) and target.id == name


def _is_literal(value: ast.expr) -> bool:
    return isinstance(value, _LITERALS) or (
        isinstance(value, ast.UnaryOp) and isinstance(value.operand, ast.Constant)
    )


def _shown(value: ast.expr) -> str:
    return shortened(ast.unparse(value), _MAX_SHOWN)


def _bound_names(tree: ast.Module) -> Iterator[str]:
    """Every binding of a name, also inside functions: the name may be declared global there."""
    for node in ast.walk(tree):
        match node:
            case ast.Name(id=name, ctx=ast.Store() | ast.Del()):
                yield name
            case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef():
                yield node.name
            case ast.Import() | ast.ImportFrom():
                yield from (alias.asname or alias.name.partition(".")[0] for alias in node.names)
            case ast.ExceptHandler(name=str(name)) | ast.MatchAs(name=str(name)):
                yield name
            case _:
                pass


def _own_nodes(function: ast.AST) -> Iterator[ast.AST]:
    """The nodes of a function's body without those of functions and classes inside it."""
    for node in ast.iter_child_nodes(function):
        if not isinstance(node, Function | ast.ClassDef | ast.Lambda):
            yield node
            yield from _own_nodes(node)
