"""What a module's syntax tree shows to be no model and no dataset, whatever its arguments are."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from hpcbal.config.checks.definitions import Function, function_of
from hpcbal.printable import shortened

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
