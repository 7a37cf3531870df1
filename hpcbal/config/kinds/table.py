"""The kinds of runs that a file may name, and which one it names (docs/adr/0010)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

from hpcbal.config.kinds.ensemble import ENSEMBLE
from hpcbal.config.kinds.jobs import JOBS
from hpcbal.config.kinds.kind import Kind
from hpcbal.config.kinds.paramserver import PARAMSERVER
from hpcbal.config.schema.ensemble import EnsembleConfig
from hpcbal.config.schema.jobs import JobsConfig
from hpcbal.config.schema.paramserver import ParamServerConfig
from hpcbal.config.schema.run import DEFAULT_KIND
from hpcbal.config.source.nodes import YamlNode
from hpcbal.config.source.overrides import Override
from hpcbal.config.source.shown import did_you_mean, show
from hpcbal.errors import ConfigError

AnyConfig: TypeAlias = EnsembleConfig | ParamServerConfig | JobsConfig
"""What a file can become; the type checker lists every caller that must check which."""

KINDS: Mapping[str, Kind[Any]] = {"ensemble": ENSEMBLE, "paramserver": PARAMSERVER, "jobs": JOBS}


def kind_of(root: YamlNode, overrides: Sequence[Override] = ()) -> Kind[Any]:
    """The kind of run that a file describes; an ensemble if it names none.

    Args:
        root: the file.
        overrides: overrides from the command line; the last one of `kind` wins.

    Raises:
        ConfigError: if there is no such kind. Nothing else in the file can be checked then.
    """
    given = next((o.value for o in reversed(overrides) if o.path == "kind"), root.get("kind"))
    if given is None:
        return KINDS[DEFAULT_KIND]
    name = given.plain()
    if not isinstance(name, str) or name not in KINDS:
        hint = did_you_mean(name, KINDS) if isinstance(name, str) else ""
        raise ConfigError([given.problem(f"got {show(name)}, allowed: {', '.join(KINDS)}{hint}")])
    return KINDS[name]
