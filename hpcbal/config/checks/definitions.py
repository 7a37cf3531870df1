"""The signature of a function or class, read from its syntax tree alone."""

from __future__ import annotations

import ast
from inspect import Parameter, Signature

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
