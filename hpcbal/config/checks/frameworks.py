"""The framework of a DNN: what it says itself, or what the source of its callable imports."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Mapping
from importlib.util import find_spec
from typing import TYPE_CHECKING, Literal

from hpcbal.config.callables import OPTIMIZER
from hpcbal.config.checks.import_check import entry_problems, sources_of
from hpcbal.config.checks.names import items_of
from hpcbal.config.schema.objective import MODULE_LOSS
from hpcbal.config.schema.optimizer import KERAS_OPTIMIZERS, OPTIMIZERS, TORCH_OPTIMIZERS
from hpcbal.config.source.nodes import YamlNode, show

if TYPE_CHECKING:
    from hpcbal.config.schema.dnn import DnnConfig
    from hpcbal.config.schema.ensemble import BackendConfig, EnsembleConfig
    from hpcbal.config.source.nodes import YamlNode

Framework = Literal["tensorflow", "torch"]

TITLES: Mapping[Framework, str] = {"tensorflow": "TensorFlow", "torch": "PyTorch"}

_FRAMEWORK_OF: Mapping[str, Framework] = {
    "keras": "tensorflow",
    "keras_cv": "tensorflow",
    "keras_hub": "tensorflow",
    "tensorflow": "tensorflow",
    "monai": "torch",
    "segmentation_models_pytorch": "torch",
    "timm": "torch",
    "torch": "torch",
    "torchvision": "torch",
}
"""Packages that only one framework needs."""

_OF_ONE = frozenset(OPTIMIZERS) - (TORCH_OPTIMIZERS.keys() & frozenset(KERAS_OPTIMIZERS))
"""Optimizers that only one framework has."""

_IF_TORCH = "if it is a module of PyTorch, set its framework: torch"


def framework_of(dnn: DnnConfig, backend: BackendConfig) -> Framework:
    """Return the framework of a DNN, without importing anything.

    It is the DNN's `framework`, or else `backend.name` if that is one, or else that of the packages which the
    function of the model imports or names, or else of those which its module imports. A name may be that of
    an import, a function or a class of the same module. Where the source does not say, it is TensorFlow.
    """
    return _framework(dnn.framework, backend.name, dnn.model)


def _framework(own: object, of_all: object, model: str) -> Framework:
    for given in (own, of_all):
        if given == "tensorflow" or given == "torch":
            return given
    own_source = _named_by_function(model)
    module = _module_of(model)
    if own_source is None and module is not None:
        found = _imported_by(module, {})
        return found.pop() if len(found) == 1 else "tensorflow"
    return own_source or "tensorflow"


def _module_of(model: str) -> ast.AST | None:
    return next(reversed(sources_of(model)), None)


def _named_by_function(model: str) -> Framework | None:
    """The only framework that the package or the function of a model imports or names."""
    package = model.partition(":")[0].partition(".")[0]
    known = _known_names(_module_of(model))
    guesses = [_frameworks([package]), *(_imported_by(each, known) for each in sources_of(model)[:-1])]
    return next((found.pop() for found in guesses if len(found) == 1), None)


def framework_problems(root: YamlNode) -> list[str]:
    """Reject what a framework does not have: a loss of the module, `compile`, optimizers, their arguments.

    Args:
        root: a written-out configuration, which may have other problems.
    """
    problems: dict[str, None] = {}
    backend, _ = root.deepest(("backend", "name"))
    if backend.value == "emulated":
        return []
    for dnn in items_of(root, "dnns"):
        loss, model, own = dnn.get("loss"), dnn.get("model"), dnn.get("framework")
        named = None if loss is None else loss.get("name") or loss
        given = (named, MODULE_LOSS), (dnn.get("compile"), True)
        found = [node for node, value in given if node is not None and node.value == value]
        optimizer = dnn.get("optimizer")
        name = _name_of(optimizer)
        args = None if optimizer is None else optimizer.get("args")
        is_of_one = name is not None and name.value in _OF_ONE
        if not (found or args or is_of_one) or model is None or not isinstance(model.value, str):
            continue
        if _framework(None if own is None else own.value, backend.value, model.value) == "torch":
            problems |= dict.fromkeys(_optimizer_problems(optimizer))
            if name is not None and is_of_one and name.value not in TORCH_OPTIMIZERS:
                allowed = ", ".join(TORCH_OPTIMIZERS)
                text = f"got {show(name.value)}, allowed for a module of PyTorch: {allowed}"
                problems[name.problem(text)] = None
            continue
        if name is not None and is_of_one and name.value not in KERAS_OPTIMIZERS:
            allowed = ", ".join(KERAS_OPTIMIZERS)
            text = f"got {show(name.value)}, allowed for a Keras model: {allowed}; {_IF_TORCH}"
            problems[name.problem(text)] = None
        for node in found:
            allowed = "false" if node.value is True else "a loss by name or import path"
            problem = f"got {show(node.value)}, allowed for a Keras model: {allowed}; {_IF_TORCH}"
            problems[node.problem(problem)] = None
    return list(problems)


def _name_of(optimizer: YamlNode | None) -> YamlNode | None:
    """Return the name of an optimizer, if it is a text; other checks report one that is not."""
    name = None if optimizer is None else optimizer.get("name")
    return name if name is not None and isinstance(name.value, str) else None


def _optimizer_problems(optimizer: YamlNode | None) -> list[str]:
    """Problems with `args` of an optimizer of PyTorch, as its source says, if it is installed here."""
    name = _name_of(optimizer)
    if optimizer is None or name is None or name.value not in TORCH_OPTIMIZERS or find_spec("torch") is None:
        return []
    path = YamlNode(f"torch.optim:{TORCH_OPTIMIZERS[name.value]}", name.where, name.key)
    entry = YamlNode({**optimizer.value, "name": path}, optimizer.where, optimizer.key)
    return entry_problems(entry, "name", OPTIMIZER)


def framework_warnings(config: EnsembleConfig, root: YamlNode) -> list[str]:
    """Lines in the form of problems: frameworks that seem wrong, or are needed and not installed here.

    Only warnings: a function may return what its source does not name, and the file may be checked on another
    machine than that of the run.

    Args:
        config: the validated configuration.
        root: the written-out configuration that was validated.
    """
    if config.backend.is_emulated:
        return []
    missing = [framework for framework in TITLES if find_spec(framework) is None]
    first: dict[Framework, int] = {}
    of_model: dict[tuple[str, Framework | None], Framework] = {}
    for index, dnn in enumerate(config.dnns):
        key = (dnn.model, dnn.framework)
        if key not in of_model:
            of_model[key] = framework_of(dnn, config.backend)
            first.setdefault(of_model[key], index)
    lines = _contradictions(config, root)
    for framework in missing:
        if framework in first:
            node, _ = root.deepest(("dnns", first[framework], "model"))
            lines.append(
                node.problem(
                    f"needs {TITLES[framework]}, which is not installed on this machine; for a run here: pip "
                    f"install 'hpcbal[{framework}]'"
                )
            )
    return lines


def _contradictions(config: EnsembleConfig, root: YamlNode) -> list[str]:
    """A line for each model whose given framework is not the one that its function names."""
    lines, seen = list[str](), set[tuple[str, Framework | None]]()
    for index, dnn in enumerate(config.dnns):
        if (dnn.model, dnn.framework) in seen:
            continue
        seen.add((dnn.model, dnn.framework))
        is_own = dnn.framework is not None
        node, _ = root.deepest(("dnns", index, "framework") if is_own else ("backend", "name"))
        given, named = framework_of(dnn, config.backend), _named_by_function(dnn.model)
        if named is not None and named != given:
            key = "framework" if is_own else "the DNN's framework"
            text = (
                f"got {given}, but {dnn.model} names {TITLES[named]} alone; if its model is of "
                f"{TITLES[named]}, set {key}: {named}, or the run is refused"
            )
            lines.append(node.problem(text))
    return lines


def _known_names(module: ast.AST | None) -> dict[str, ast.AST | str]:
    """By name of a module, the import path of an import, or a function or class of the module."""
    known: dict[str, ast.AST | str] = {}
    for part in module.body if isinstance(module, ast.Module) else ():
        if isinstance(part, ast.Import):
            known |= {alias.asname: alias.name for alias in part.names if alias.asname is not None}
        elif isinstance(part, ast.ImportFrom) and part.module is not None and not part.level:
            known |= {alias.asname or alias.name: part.module for alias in part.names}
        elif isinstance(part, ast.FunctionDef | ast.ClassDef):
            known[part.name] = part
    return known


def _imported_by(node: ast.AST, known: Mapping[str, ast.AST | str]) -> set[Framework]:
    """The frameworks of all that a function, a class or a module imports or names, in annotations too.

    Args:
        known: names of the module, see `_known_names`; functions and classes among them are read, too.
    """
    names, waiting, seen = [], [node], {id(node)}
    while waiting:
        for part in ast.walk(waiting.pop()):
            if isinstance(part, ast.Import):
                names += [alias.name for alias in part.names]
            elif isinstance(part, ast.ImportFrom) and part.module is not None and not part.level:
                names.append(part.module)
            elif isinstance(part, ast.Name):
                found = known.get(part.id, part.id)
                if isinstance(found, str):
                    names.append(found)
                elif id(found) not in seen:
                    seen.add(id(found))
                    waiting.append(found)
    return _frameworks(name.partition(".")[0] for name in names)


def _frameworks(packages: Iterable[str]) -> set[Framework]:
    return {_FRAMEWORK_OF[package] for package in packages if package in _FRAMEWORK_OF}
