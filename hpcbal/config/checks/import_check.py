"""Check import paths and arguments without importing: find the module's file and read its syntax tree.

No user code runs, and TensorFlow is not loaded. Where a file alone is not enough (compiled modules, star
imports, a module's `__getattr__`, decorated functions, annotations that are not plain), nothing is reported.
"""

from __future__ import annotations

import ast
import importlib.machinery
import importlib.util
import inspect
import sys
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from functools import cache
from inspect import Signature
from pathlib import Path
from types import BuiltinFunctionType

from hpcbal.config.callables import (
    APP,
    CALLBACK,
    DATASET,
    MODEL,
    OPERATION,
    PER_SAMPLE,
    SCHEDULE,
    SCHEDULE_OF_STEP,
    Contract,
    Misfit,
    misfits,
    names_of_args,
)
from hpcbal.config.checks.names import is_by_output, items_of, own_operations
from hpcbal.config.checks.signatures import (
    Function,
    allowed_by_name,
    function_of,
    signature_of,
    why_uncallable,
)
from hpcbal.config.schema.dnn import INSTEAD_OF_KERAS_CALLBACKS
from hpcbal.config.schema.run import DatasetConfig
from hpcbal.config.schema.section import is_import_path
from hpcbal.config.source.meant import did_you_mean
from hpcbal.config.source.nodes import YamlNode, join_key, show
from hpcbal.errors import MOST_PROBLEMS

_MAX_HOPS = 5  # how many `from x import name` are followed


@dataclass(slots=True)
class _Names:
    """The names that a module's source defines at top level."""

    file: str
    tree: ast.Module
    is_package: bool = False
    open: bool = False  # may define names that its source does not show
    names: set[str] = field(default_factory=set)
    definitions: dict[str, ast.stmt] = field(default_factory=dict)
    imported: dict[str, tuple[str, str]] = field(default_factory=dict)  # name -> (module, name there)


def import_problems(root: YamlNode) -> list[str]:
    """Problems with models, datasets and a user's operations in a written-out configuration.

    Returns: all, or more than are shown.
    """
    problems: dict[str, None] = {}
    data = root.get("data")
    dnns = root.get("dnns")
    if data is not None and data.is_mapping:
        data = _with_dataset(data)
        problems |= dict.fromkeys(entry_problems(data, "dataset", DATASET))
        for name in ("validation", "test"):
            problems |= dict.fromkeys(_held_out_problems(data, data.get(name)))
    for operation in own_operations(root):
        problems |= dict.fromkeys(entry_problems(operation, "operation", OPERATION))
    for dnn in dnns.value if dnns is not None and dnns.is_list else []:
        if dnn.is_mapping:
            problems |= dict.fromkeys(entry_problems(dnn, "model", MODEL))
            schedule, rest = dnn.deepest(("optimizer", "schedule"))
            if not rest:
                problems |= dict.fromkeys(entry_problems(_named(schedule), "name", SCHEDULE))
            callbacks = dnn.get("callbacks")
            for callback in callbacks.value if callbacks is not None and callbacks.is_list else ():
                problems |= dict.fromkeys(_callback_problems(_named(callback)))
            for named in _losses_and_metrics(dnn):
                problems |= dict.fromkeys(entry_problems(named, "name", PER_SAMPLE))
        if len(problems) > MOST_PROBLEMS:
            break
    return list(problems)


def _callback_problems(callback: YamlNode) -> list[str]:
    """Problems with one callback; Keras' own classes are for `fit`, which hpcbal does not call."""
    name = callback.get("name")
    package, _, attribute = str(name.value if name is not None else "").partition(":")
    is_keras = package.split(".")[0] in ("keras", "tf_keras", "tensorflow")
    if name is not None and is_keras and package.split(".")[-1] == "callbacks":
        instead = INSTEAD_OF_KERAS_CALLBACKS.get(attribute, "a function or class of your own")
        return [
            name.problem(
                f"got {show(name.value)}, a class for Keras' fit(), allowed: a callable that gets an "
                f"EpochEnd (docs/training.md, Callbacks); instead of {attribute} use {instead}"
            )
        ]
    return entry_problems(callback, "name", CALLBACK)


def paramserver_import_problems(root: YamlNode) -> list[str]:
    """Problems with the app and the dataset of a parameter-server job."""
    problems = dict.fromkeys(entry_problems(root, "app", APP))
    data = root.get("data")
    if data is not None and data.is_mapping:
        problems |= dict.fromkeys(entry_problems(_with_dataset(data), "dataset", DATASET))
    return list(problems)


def jobs_import_problems(root: YamlNode) -> list[str]:
    """Problems with the apps and the datasets of many parameter-server jobs; all, or more than are shown."""
    problems: dict[str, None] = {}
    for job in items_of(root, "jobs"):
        if job.is_mapping:
            problems |= dict.fromkeys(paramserver_import_problems(job))
        if len(problems) > MOST_PROBLEMS:
            break
    return list(problems)


def _with_dataset(data: YamlNode) -> YamlNode:
    """A section that names a dataset, with the default if it names none."""
    if data.get("dataset") is not None:
        return data
    default = YamlNode(DatasetConfig().dataset, data.where, join_key(data.key, "dataset"))
    return YamlNode({**data.value, "dataset": default}, data.where, data.key)


def _held_out_problems(data: YamlNode, section: YamlNode | None) -> list[str]:
    """Problems with a held-out dataset, whose callable is that of `data.dataset` unless it has its own."""
    if section is None or not section.is_mapping:
        return []
    own = section.get("dataset")
    if own is None or own.value is None:
        section = YamlNode({**section.value, "dataset": data.value["dataset"]}, section.where, section.key)
    return entry_problems(section, "dataset", DATASET)


def _losses_and_metrics(dnn: YamlNode) -> list[YamlNode]:
    """The losses and the metrics of a DNN as mappings with a `name`."""
    found: list[YamlNode] = []
    for given in (dnn.get("loss"), dnn.get("metrics")):
        nodes = [] if given is None else list(given.value.values()) if is_by_output(given) else [given]
        for node in nodes:
            found += node.value if node.is_list else [node]
    return [_named(node) for node in found if node.value is not None]


def _named(node: YamlNode) -> YamlNode:
    """Return a node that may be a name alone as a mapping with a `name`."""
    return node if node.is_mapping else YamlNode({"name": node}, node.where, node.key)


def arguments_of(path: object, contract: Contract) -> tuple[str, ...] | None:
    """The names that `args` of a callable may have; None if its source does not show them.

    Args:
        path: its import path, or what is given for it.
        contract: how hpcbal calls it.
    """
    if not isinstance(path, str) or not is_import_path(path):
        return None
    definition = _look_up(path, tuple(sys.path)).definition
    known = None if definition is None else _known_arguments(definition)
    return None if known is None else names_of_args(known[1], contract)


def sources_of(path: str) -> list[ast.AST]:
    """The function or class at an import path and its module, as far as their source shows them."""
    found = _look_up(path, tuple(sys.path)) if is_import_path(path) else _Found()
    return [part for part in (found.definition, found.module) if part is not None]


def entry_problems(entry: YamlNode, key: str, contract: Contract) -> list[str]:
    """Problems with one import path and its `args`.

    Args:
        entry: has both.
        key: that of the path.
        contract: how hpcbal calls what is there.
    """
    path = entry.get(key)
    if path is None or not isinstance(path.value, str) or not is_import_path(path.value):
        return []  # the schema refuses it
    found = _look_up(path.value, tuple(sys.path))
    if found.problem is not None:
        return [path.problem(found.problem)]
    definition = found.definition
    known = None if definition is None else _known_arguments(definition)
    if definition is None and (signature := _signature_in_c(path.value)) is not None:
        args = entry.get("args")
        given = args.value if args is not None and args.is_mapping else {}
        wrong = misfits(path.value, signature, given, contract)
        return [_node_of(misfit, path, args).problem(misfit.text) for misfit in wrong]
    if isinstance(definition, ast.ClassDef) and contract in (PER_SAMPLE, OPERATION, SCHEDULE, CALLBACK):
        contract = replace(contract, passed=(), words=())
    return [] if known is None else _argument_problems(entry, path, *known, contract)


def _signature_in_c(path: str) -> Signature | None:
    """The signature of a function in C, of a module that this process has loaded; None of anything else."""
    module, _, attribute = path.partition(":")
    function = getattr(sys.modules.get(module), attribute, None)
    if not isinstance(function, BuiltinFunctionType):
        return None
    try:
        return inspect.signature(function)
    except ValueError:  # it does not say
        return None


@cache
def _known_arguments(definition: ast.stmt) -> tuple[Function, Signature] | None:
    """The function that a caller of `definition` calls, and its signature; None if they are unknown."""
    function = function_of(definition)
    if function is None:
        return None
    signature = signature_of(function, is_method=function is not definition)
    return None if signature is None else (function, signature)


def _argument_problems(
    entry: YamlNode, path: YamlNode, function: Function, signature: Signature, contract: Contract
) -> list[str]:
    args = entry.get("args")
    if args is not None and not args.is_mapping:
        return []
    given = args.value if args is not None else {}
    found = misfits(path.value, signature, given, contract)
    if found and contract == SCHEDULE and not misfits(path.value, signature, given, SCHEDULE_OF_STEP):
        found = []
    problems = [_node_of(misfit, path, args).problem(misfit.text) for misfit in found]
    if not all(misfit.about_args for misfit in found):
        return problems
    wrong = {misfit.key for misfit in found}
    allowed_values = allowed_by_name(function)
    for name in [name for name in given if name in allowed_values and name not in wrong]:
        value, allowed = given[name].plain(), allowed_values[name]
        if not allowed.takes(value):
            message = f"got {show(value)}, allowed by {path.value}: {allowed.describe(value)}"
            problems.append(given[name].problem(message))
    return problems


def _node_of(misfit: Misfit, path: YamlNode, args: YamlNode | None) -> YamlNode:
    """Where in the file the misfit is reported."""
    if not misfit.about_args or args is None:
        return path
    return args if misfit.key is None else args.value[misfit.key]


@dataclass(frozen=True, slots=True)
class _Found:
    """A problem with an import path, or the definition there and the module that has it, or nothing."""

    problem: str | None = None
    definition: ast.stmt | None = None
    module: ast.Module | None = None


@cache
def _look_up(path: str, roots: tuple[str, ...]) -> _Found:
    """Read the source of an import path; nothing, if a name exists but its definition is not found."""
    module, _, attribute = path.partition(":")
    first, _, rest = attribute.partition(".")
    for hop in range(_MAX_HOPS):
        names, problem = _read(module, roots)
        if problem is not None and hop > 0:
            return _Found()  # the importing module may create it
        if problem is not None:
            return _Found(f"got {show(path)}: {problem}")
        if names is None:
            return _Found()
        if first not in names.names:
            if names.open or _is_submodule(names, module, first):
                return _Found()
            hint = did_you_mean(first, (n for n in names.names if not n.startswith("_")))
            return _Found(f"got {show(path)}: {names.file} defines no '{first}'{hint}")
        if rest:
            return _Found()
        why = None if names.open else why_uncallable(names.tree, first)
        if why is not None:
            return _Found(f"got {show(path)}: {names.file}: {why}, allowed: a function or class")
        if first in names.definitions:
            return _Found(None, names.definitions[first], names.tree)
        if first not in names.imported:
            return _Found()
        module, first = names.imported[first]
    return _Found()


def _find(name: str) -> tuple[importlib.machinery.ModuleSpec | None, str]:
    """(spec, name of the part that was looked for last), found without importing the parents."""
    loaded = sys.modules.get(name)  # os.path exists only there
    if loaded is not None and loaded.__spec__ is not None:
        return loaded.__spec__, name
    parts = name.split(".")
    try:
        spec = importlib.util.find_spec(parts[0])
    except (ImportError, ValueError, AttributeError):
        spec = None
    for i in range(1, len(parts)):
        if spec is None or spec.submodule_search_locations is None:
            return None, ".".join(parts[:i] if spec is None else parts[: i + 1])
        full = ".".join(parts[: i + 1])
        spec = importlib.machinery.PathFinder.find_spec(full, list(spec.submodule_search_locations))
        if spec is None:
            return None, full
    return spec, name


@cache
def _read(module: str, roots: tuple[str, ...]) -> tuple[_Names | None, str | None]:
    """(top-level names, problem); (None, None) for a module whose source cannot be read.

    Args:
        roots: `sys.path`; what is known holds for it only.
    """
    spec, looked_for = _find(module)
    if spec is None:
        advice = "put it beside the configuration, into the current directory, or install it"
        hint = f" (did you mean '{looked_for.removesuffix('.py')}'?)" if looked_for.endswith(".py") else ""
        return None, f"no module '{looked_for}'{hint}; {advice}"
    if spec.origin is None or not spec.origin.endswith(".py"):
        return None, None
    try:
        tree = ast.parse(Path(spec.origin).read_bytes(), spec.origin)
    except SyntaxError as error:
        return None, f"{spec.origin}:{error.lineno}: syntax error: {error.msg}"
    except (OSError, ValueError) as error:
        return None, f"{spec.origin} cannot be read: {error}"
    names = _Names(spec.origin, tree, is_package=spec.submodule_search_locations is not None)
    _collect(tree.body, names, module)
    return names, None


def _collect(body: Iterable[ast.stmt], names: _Names, module: str) -> None:
    for statement in body:
        if isinstance(statement, Function | ast.ClassDef):
            names.names.add(statement.name)
            names.definitions[statement.name] = statement
            names.open |= statement.name == "__getattr__"
        elif isinstance(statement, ast.ImportFrom):
            _collect_import(statement, names, module)
        elif isinstance(statement, ast.Import):
            names.names.update(a.asname or a.name.partition(".")[0] for a in statement.names)
        else:
            # Assignments, and everything inside if, try, with, for.
            names.names.update(_targets(statement))
            for _, value in ast.iter_fields(statement):
                for item in value if isinstance(value, list) else []:
                    if isinstance(item, ast.stmt):
                        _collect([item], names, module)
                    elif isinstance(item, ast.ExceptHandler | ast.match_case):
                        _collect(item.body, names, module)


def _collect_import(statement: ast.ImportFrom, names: _Names, module: str) -> None:
    base = statement.module or ""
    if statement.level:
        parts = module.split(".")
        kept = parts if names.is_package else parts[:-1]
        kept = kept[: len(kept) - (statement.level - 1)]
        base = ".".join([*kept, *([statement.module] if statement.module else [])])
    for alias in statement.names:
        if alias.name == "*":
            names.open = True
            continue
        name = alias.asname or alias.name
        names.names.add(name)
        names.imported[name] = (base, alias.name)


def _targets(statement: ast.stmt) -> set[str]:
    """Names bound directly by a statement other than a definition or an import."""
    if not isinstance(statement, ast.Assign | ast.AnnAssign | ast.AugAssign | ast.For | ast.With):
        return set()
    return {n.id for n in ast.walk(statement) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)}


def _is_submodule(names: _Names, module: str, name: str) -> bool:
    return names.is_package and _find(f"{module}.{name}")[0] is not None
