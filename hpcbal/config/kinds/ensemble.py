"""How an ensemble's file becomes an `EnsembleConfig`: sweeps, defaults, checks and warnings."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pydantic import BaseModel

from hpcbal.config.checks.compared import compared_losses
from hpcbal.config.checks.group_size import size_warnings
from hpcbal.config.checks.import_check import import_problems
from hpcbal.config.checks.initial_check import initial_warnings
from hpcbal.config.checks.mixed_labels import mixed_label_problems
from hpcbal.config.checks.packages import package_problems
from hpcbal.config.checks.ring import ring_problems
from hpcbal.config.checks.sections import cross_problems
from hpcbal.config.checks.walltime import walltime_warnings
from hpcbal.config.checks.without_effect import keys_without_effect
from hpcbal.config.expand import Expansion, expand_dnns, with_defaults
from hpcbal.config.kinds.kind import Draft, Kind, apply_all
from hpcbal.config.schema.document import FILE_ONLY_KEYS, Defaults
from hpcbal.config.schema.ensemble import EnsembleConfig
from hpcbal.config.schema.search import SearchConfig
from hpcbal.config.source.nodes import YamlNode
from hpcbal.config.source.overrides import Override


def _draft(root: YamlNode, overrides: Sequence[Override]) -> Draft:
    """Expand `sweeps` and merge `defaults`; overrides of a single DNN are applied once it exists."""
    problems = apply_all([o for o in overrides if not _targets_one_dnn(o)], root)
    expansion = expand_dnns(root.get("dnns"), root.get("sweeps"), _seed_of(root))
    problems += expansion.problems
    full = _written_out(root, expansion)
    problems += apply_all([o for o in overrides if _targets_one_dnn(o)], full)
    unknown_keys = frozenset({"dnns"} if expansion.problems or expansion.searches else ())
    return Draft(full, tuple(problems), _parts(root.get("defaults"), expansion), unknown_keys)


def _seed_of(root: YamlNode) -> int:
    """The run's seed; its default if what is given is no number, which is reported elsewhere."""
    node = root.get("seed")
    default: int = EnsembleConfig.model_fields["seed"].default
    is_number = node is not None and isinstance(node.value, int) and not isinstance(node.value, bool)
    return node.value if node is not None and is_number else default


def _targets_one_dnn(override: Override) -> bool:
    """Whether it changes a DNN by name or index, and so must wait until the sweeps are expanded."""
    return override.path.startswith("dnns.")


def _written_out(root: YamlNode, expansion: Expansion) -> YamlNode:
    values: dict[Any, YamlNode] = {k: node for k, node in root.value.items() if k not in FILE_ONLY_KEYS}
    origin = root.get("dnns") or root.get("sweeps")
    if origin is not None:
        dnns = [with_defaults(dnn, root.get("defaults")) for dnn in expansion.dnns]
        values["dnns"] = YamlNode(dnns, origin.where, "dnns")
    return YamlNode(values, root.where, "")


def _parts(defaults: YamlNode | None, expansion: Expansion) -> tuple[tuple[YamlNode, type[BaseModel]], ...]:
    """`defaults`, the bodies of sweeps that could not be expanded, and their searches that are wrong."""
    parts: list[tuple[YamlNode, type[BaseModel]]] = [] if defaults is None else [(defaults, Defaults)]
    for body in expansion.incomplete:
        nameless = YamlNode({k: v for k, v in body.value.items() if k != "name"}, body.where, body.key)
        dnns = YamlNode([nameless], body.where, "dnns")
        parts.append((YamlNode({"dnns": dnns}, body.where, ""), EnsembleConfig))
    parts += [(search, SearchConfig) for search in expansion.searches]
    return tuple(parts)


def _problems(full: YamlNode) -> list[str]:
    return [*cross_problems(full), *mixed_label_problems(full), *ring_problems(full)]


def _environment_problems(full: YamlNode) -> list[str]:
    return [*import_problems(full), *package_problems(full)]


def _warnings(config: EnsembleConfig, full: YamlNode, beforehand: bool) -> list[str]:
    lines = [*keys_without_effect(config, full), *compared_losses(config, full)]
    lines += walltime_warnings(config, full)
    return lines + ([*size_warnings(config, full), *initial_warnings(config, full)] if beforehand else [])


ENSEMBLE = Kind(EnsembleConfig, _draft, _problems, _environment_problems, _warnings)
