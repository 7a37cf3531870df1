"""From a YAML file and `--set` texts to a frozen `RunConfig`, or to all that is wrong with them at once."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import yaml
from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from hpcbal.config.checks.group_size import size_warnings
from hpcbal.config.checks.import_check import import_problems
from hpcbal.config.checks.packages import package_problems
from hpcbal.config.checks.sections import cross_problems
from hpcbal.config.checks.without_effect import keys_without_effect
from hpcbal.config.expand import Expansion, expand_dnns, with_defaults
from hpcbal.config.imports import add_import_roots
from hpcbal.config.messages import explain
from hpcbal.config.schema.document import FILE_ONLY_KEYS, Defaults
from hpcbal.config.schema.run import RunConfig
from hpcbal.config.source.nodes import YamlNode
from hpcbal.config.source.overrides import Override, apply_override, parse_overrides, targets_one_dnn
from hpcbal.config.source.yaml_source import Dumper, read_yaml
from hpcbal.errors import ConfigError


def load_config(
    path: str | Path,
    overrides: Sequence[str] = (),
    *,
    check_imports: bool = False,
    warn: Callable[[str], None] | None = None,
    beforehand: bool = False,
) -> RunConfig:
    """Read and check a configuration.

    The directory of the file and the current one become importable. Relative paths in the file are meant
    from the current directory.

    Args:
        path: YAML file.
        overrides: texts `a.b=c`; DNNs by name or index, e.g. `dnns.resnet8.batch_size=64`.
        check_imports: also look whether models and datasets exist where their import paths say, and know
            the arguments given, and whether packages are installed that the settings need; no user code runs
            for that.
        warn: gets a line for each key that is right but has no effect (see `keys_without_effect`).
        beforehand: nobody will tell more of the GPUs than the file: warn of what may not go with them, too
            (see `size_warnings`).

    Raises:
        ConfigError: with every problem that was found, one line each.
    """
    root = read_yaml(path)
    add_import_roots(path)
    settings, problems = parse_overrides(overrides)
    problems += _apply([o for o in settings if not targets_one_dnn(o)], root)
    expansion = expand_dnns(root.get("dnns"), root.get("sweeps"))
    problems += expansion.problems
    full = _written_out(root, expansion, Path(path))
    problems += _apply([o for o in settings if targets_one_dnn(o)], full)
    config, found = _validate(full, dnns_known=not expansion.problems)
    problems += found
    problems += _check_partial(root.get("defaults"), expansion)
    problems += cross_problems(full)
    if check_imports:
        problems += [*import_problems(full), *package_problems(full)]
    if problems or config is None:
        raise ConfigError(sorted(dict.fromkeys(problems), key=_position))
    if warn is not None:
        lines = keys_without_effect(config, full) + (size_warnings(config, full) if beforehand else [])
        for line in sorted(lines, key=_position):
            warn(line)
    return config


def resolved_yaml(config: RunConfig) -> str:
    """The configuration with every key written out; loads to an equal `RunConfig`."""
    values = _plain(config.model_dump(by_alias=True))
    text: str = yaml.dump(values, Dumper=Dumper, sort_keys=False, allow_unicode=True, width=100)
    return text


def _apply(overrides: Sequence[Override], root: YamlNode) -> list[str]:
    return [problem for o in overrides if (problem := apply_override(root, o)) is not None]


def _written_out(root: YamlNode, expansion: Expansion, path: Path) -> YamlNode:
    """The whole configuration as `RunConfig` reads it: no `defaults`, no `sweeps`."""
    values: dict[Any, YamlNode] = {key: node for key, node in root.value.items() if key not in FILE_ONLY_KEYS}
    values.setdefault("name", YamlNode(_name_from(path), f"{path}:1", "name"))
    origin = root.get("dnns") or root.get("sweeps")
    if origin is not None:
        dnns = [with_defaults(dnn, root.get("defaults")) for dnn in expansion.dnns]
        values["dnns"] = YamlNode(dnns, origin.where, "dnns")
    return YamlNode(values, root.where, "")


def _name_from(path: Path) -> str:
    """The file's stem, made usable as a directory name."""
    name = re.sub(r"[^A-Za-z0-9._+=,@-]+", "-", path.stem).lstrip("._+=,@-")[:100]
    return name or "ensemble"


def _validate(full: YamlNode, *, dnns_known: bool) -> tuple[RunConfig | None, list[str]]:
    """(config or None, problems); an empty list of DNNs is no news when they could not be written out."""
    try:
        return RunConfig.model_validate(full.plain()), []
    except ValidationError as error:
        errors = _errors(error)
        if not dnns_known:
            errors = [e for e in errors if e["loc"] != ("dnns",)]
        return None, explain(errors, full, RunConfig)


def _check_partial(defaults: YamlNode | None, expansion: Expansion) -> list[str]:
    """Check `defaults` and the bodies of broken sweeps: whatever is there must be right."""
    partial: list[tuple[YamlNode, type[BaseModel]]] = []
    if defaults is not None:
        partial.append((defaults, Defaults))
    for body in expansion.incomplete:
        nameless = YamlNode({k: v for k, v in body.value.items() if k != "name"}, body.where, body.key)
        partial.append(
            (YamlNode({"dnns": YamlNode([nameless], body.where, "dnns")}, body.where, ""), RunConfig)
        )
    problems: list[str] = []
    for node, model in partial:
        try:
            model.model_validate(node.plain())
        except ValidationError as error:
            present = [e for e in _errors(error) if e["type"] != "missing"]
            problems += explain(present, node, model)
    return problems


def _errors(error: ValidationError) -> list[ErrorDetails]:
    return error.errors(include_url=False, include_input=False)


def _position(problem: str) -> tuple[int, int]:
    """Sort key: problems of the file by line, then those of `--set` as given."""
    match = re.match(r".*?:(\d+): ", problem)
    if match is None or problem.startswith("--set "):
        return (1, 0)
    return (0, int(match[1]))


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    return value
