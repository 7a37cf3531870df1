"""How an ensemble's file becomes an `EnsembleConfig`: sweeps, defaults, checks and warnings."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from hpcbal.config.checks.frameworks import framework_problems, framework_warnings
from hpcbal.config.checks.import_check import import_problems
from hpcbal.config.checks.names import package_problems
from hpcbal.config.checks.sections import cross_problems, mixed_label_problems, ring_problems
from hpcbal.config.checks.warnings import (
    compared_losses,
    data_warnings,
    initial_warnings,
    searches_in_vain,
    size_warnings,
    walltime_warnings,
)
from hpcbal.config.checks.without_effect import keys_without_effect
from hpcbal.config.kinds.kind import Draft, KindFile
from hpcbal.config.kinds.listing import draft_of_list, schema_of_list
from hpcbal.config.listed import DNNS
from hpcbal.config.schema.document import Defaults
from hpcbal.config.schema.ensemble import EnsembleConfig
from hpcbal.config.source.nodes import YamlNode
from hpcbal.config.source.overrides import Override


def _draft(root: YamlNode, overrides: Sequence[Override]) -> Draft:
    return draft_of_list(root, overrides, DNNS, EnsembleConfig, Defaults)


def _problems(full: YamlNode) -> list[str]:
    return [*cross_problems(full), *mixed_label_problems(full), *ring_problems(full)]


def _environment_problems(full: YamlNode) -> list[str]:
    return [*import_problems(full), *package_problems(full), *framework_problems(full)]


def _warnings(config: EnsembleConfig, full: YamlNode, beforehand: bool) -> list[str]:
    lines = [
        *keys_without_effect(config, full),
        *compared_losses(config, full),
        *searches_in_vain(config, full),
    ]
    lines += walltime_warnings(config, full)
    if beforehand:
        lines += [*size_warnings(config, full), *initial_warnings(config, full), *data_warnings(full)]
        lines += framework_warnings(config, full)
    return lines


def _schema() -> dict[str, Any]:
    schema = schema_of_list(EnsembleConfig, DNNS)
    for name in ("LossConfig", "OptimizerConfig", "ScheduleOfRateConfig", "StopConfig"):
        schema["$defs"][name].pop("required", None)
    return {**schema, "required": []}


FILE = KindFile(
    EnsembleConfig,
    DNNS,
    _draft,
    _problems,
    _environment_problems,
    _warnings,
    _schema,
    "hpcbal configuration",
)
