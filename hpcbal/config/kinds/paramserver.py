"""How a parameter-server job's file becomes a `ParamServerConfig`: checks and warnings."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from hpcbal.config.checks.import_check import paramserver_import_problems
from hpcbal.config.checks.warnings import data_warnings, walltime_warnings
from hpcbal.config.kinds.kind import Draft, KindFile, apply_all
from hpcbal.config.schema.paramserver import ParamServerConfig
from hpcbal.config.source.nodes import YamlNode
from hpcbal.config.source.overrides import Override


def _draft(root: YamlNode, overrides: Sequence[Override]) -> Draft:
    return Draft(root, tuple(apply_all(overrides, root)))


def _problems(full: YamlNode) -> list[str]:
    return []


def _warnings(config: ParamServerConfig, full: YamlNode, beforehand: bool) -> list[str]:
    lines = walltime_warnings(config, full)
    stop = full.deepest(("stop", "min_delta"))
    if not stop[1] and config.stop.min_delta > 0 and config.stop.patience is None:
        lines.append(stop[0].problem(f"got {config.stop.min_delta}, which has an effect only with patience"))
    return lines + (data_warnings(full) if beforehand else [])


def _schema() -> dict[str, Any]:
    schema = ParamServerConfig.model_json_schema(by_alias=True)
    return {**schema, "required": [*schema["required"], "kind"]}


FILE = KindFile(
    ParamServerConfig,
    None,
    _draft,
    _problems,
    paramserver_import_problems,
    _warnings,
    _schema,
    "hpcbal configuration of a parameter-server job",
)
