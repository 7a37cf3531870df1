"""The framework of a DNN: what it says itself, or what the source of its callable imports."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Literal

from hpcbal.config.checks.import_check import sources_of

if TYPE_CHECKING:
    from hpcbal.config.schema.dnn import DnnConfig
    from hpcbal.config.schema.ensemble import BackendConfig

Framework = Literal["tensorflow", "torch"]

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


def framework_of(dnn: DnnConfig, backend: BackendConfig) -> Framework:
    """Return the framework of a DNN, without importing anything.

    It is the DNN's `framework`, or else `backend.name` if that is one, or else that of the packages which the
    function of the model imports, or else of those which its module imports. Where the source does not say,
    it is TensorFlow.
    """
    if dnn.framework is not None:
        return dnn.framework
    if backend.name == "tensorflow" or backend.name == "torch":
        return backend.name
    package = dnn.model.partition(":")[0].partition(".")[0]
    guesses = [_frameworks([package]), *map(_imported_by, sources_of(dnn.model))]
    return next((found.pop() for found in guesses if len(found) == 1), "tensorflow")


def _imported_by(node: ast.AST) -> set[Framework]:
    """The frameworks of all that a function, a class or a module imports, in annotations too."""
    names = []
    for part in ast.walk(node):
        if isinstance(part, ast.Import):
            names += [alias.name for alias in part.names]
        elif isinstance(part, ast.ImportFrom) and part.module is not None:
            names.append(part.module)
        elif isinstance(part, ast.Attribute | ast.Name):
            names.append(ast.unparse(part))
    return _frameworks(name.partition(".")[0] for name in names)


def _frameworks(packages: Iterable[str]) -> set[Framework]:
    return {_FRAMEWORK_OF[package] for package in packages if package in _FRAMEWORK_OF}
