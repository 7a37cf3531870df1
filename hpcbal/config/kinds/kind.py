"""What the loader must know of a kind of run."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Generic, TypeAlias, TypeVar

from pydantic import BaseModel

from hpcbal.config.schema.run import RunConfig
from hpcbal.config.source.nodes import YamlNode
from hpcbal.config.source.overrides import Override, apply_override

C = TypeVar("C", bound=RunConfig)
Check: TypeAlias = Callable[[YamlNode], list[str]]
"""From a written-out configuration, which may be wrong elsewhere, to lines for the user."""


@dataclass(frozen=True, slots=True)
class Draft:
    """A file with its overrides applied, written out as the config class of its kind reads it.

    Attributes:
        full: the whole configuration; keys that only a file may hold are resolved.
        problems: what was wrong on the way.
        parts: fragments that are not in `full`, with the section that each must fit as far as it goes.
        unknown_keys: top-level keys whose value could not be found out; that they look empty is no news.
    """

    full: YamlNode
    problems: tuple[str, ...] = ()
    parts: tuple[tuple[YamlNode, type[BaseModel]], ...] = ()
    unknown_keys: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class Kind(Generic[C]):
    """One kind of run.

    Attributes:
        config: the class of its configuration.
        draft: writes a file out; takes the tree of the file, which it may change, and the overrides.
        problems: checks across sections.
        environment_problems: whether what the file names by import path or needs as a package is there.
        warnings: lines for keys that are right but have no effect; with True as last argument also for what
            may turn out wrong on the allocation, of which nobody will say more.
    """

    config: type[C]
    draft: Callable[[YamlNode, Sequence[Override]], Draft]
    problems: Check
    environment_problems: Check
    warnings: Callable[[C, YamlNode, bool], list[str]]


def apply_all(overrides: Sequence[Override], root: YamlNode) -> list[str]:
    """Apply the overrides in place, in order; the problems."""
    return [problem for o in overrides if (problem := apply_override(root, o)) is not None]
