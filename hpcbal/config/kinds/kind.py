"""How a file of a kind becomes a configuration."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeAlias, TypeVar, cast

from pydantic import BaseModel

from hpcbal.config.listed import Listed
from hpcbal.config.schema.fields import models_in
from hpcbal.config.schema.run import RunConfig
from hpcbal.config.source.nodes import YamlNode
from hpcbal.config.source.overrides import Override, apply_override
from hpcbal.kinds import MayChange

C = TypeVar("C", bound=RunConfig)
Check: TypeAlias = Callable[[YamlNode], list[str]]
"""Takes a written-out configuration, which may have other errors, and returns lines for the user."""
_DIALECT = {"$schema": "https://json-schema.org/draft/2020-12/schema"}


@dataclass(frozen=True, slots=True)
class Draft:
    """A file with its overrides applied, written out in the form that the config class reads.

    Attributes:
        full: the whole configuration; keys that only a file may hold are resolved.
        problems: what was wrong so far.
        parts: fragments that are not in `full`, each with the section that checks it as far as possible.
        unknown_keys: top-level keys whose value could not be determined; an empty one is not an error.
        idle: lines in the form of problems, for keys that have no effect and are not in `full`.
    """

    full: YamlNode
    problems: tuple[str, ...] = ()
    parts: tuple[tuple[YamlNode, type[BaseModel]], ...] = ()
    unknown_keys: frozenset[str] = frozenset()
    idle: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class KindFile(Generic[C]):
    """The reader of one kind of run's files: class of the configuration, checks, warnings and schema.

    Attributes:
        config: class of the configuration.
        listed: what it lists; None if the run is one job.
        draft: writes a file out; takes the file's tree, which it may change, and the overrides.
        problems: checks across sections.
        environment_problems: checks that callables named by import path and required packages exist.
        warnings: lines for keys that are valid but have no effect; with True as last argument also for keys
            that may not fit the allocation or the machine, because nothing else will warn of them.
        schema: returns the JSON schema of a file, without its title.
        title: of that schema.
    """

    config: type[C]
    listed: Listed | None
    draft: Callable[[YamlNode, Sequence[Override]], Draft]
    problems: Check
    environment_problems: Check
    warnings: Callable[[C, YamlNode, bool], list[str]]
    schema: Callable[[], dict[str, Any]]
    title: str

    @property
    def may_change(self) -> MayChange:
        """Return which keys may change when a run is resumed, as their declarations say."""
        listed = self.listed
        own = _marks_of(self.config, "" if listed is None else listed.key)
        if listed is None:
            return MayChange(own["may_change"], own["must_stay"], own["may_move"])
        job = _marks_of(listed.item)
        return MayChange(
            own["may_change"],
            own["must_stay"],
            own["may_move"],
            listed.key,
            listed.one,
            job["may_change"],
            "".join(job["may_grow"]),
        )

    def json_schema(self) -> dict[str, Any]:
        """Return the JSON schema of a file of this kind, for editors."""
        return {**_DIALECT, **self.schema(), "title": self.title}


def apply_all(overrides: Sequence[Override], root: YamlNode, listed: Listed | None = None) -> list[str]:
    """Apply the overrides in place, in order; return the problems.

    Args:
        overrides: what to set.
        root: the values, which are changed.
        listed: of whose items a key without an item was perhaps meant for all.
    """
    problems = []
    for each in overrides:
        problem = apply_override(root, each)
        if problem is not None:
            problems.append(problem + ("" if listed is None else _meant_for_all(each.path, listed)))
    return problems


def _meant_for_all(path: str, listed: Listed) -> str:
    rest = path.removeprefix(f"{listed.key}.")
    is_of_items = rest.partition(".")[0] in listed.default_keys
    return f" (did you mean 'defaults.{rest}'?)" if is_of_items else ""


def _marks_of(section: type[BaseModel], leave_out: str = "") -> dict[str, tuple[str, ...]]:
    """The dotted keys of a section and of those in it, by what their declarations say of a resumed run.

    Args:
        section: the section.
        leave_out: a key of it whose items are looked at by themselves.
    """
    found: dict[str, list[str]] = {mark: [] for mark in ("may_change", "must_stay", "may_move", "may_grow")}

    def look(inside: type[BaseModel], prefix: str, does_change: bool) -> None:
        for name, field in inside.model_fields.items():
            dotted, marks = f"{prefix}{name}", cast(dict[str, Any], field.json_schema_extra or {})
            may_change = marks.get("may_change", does_change)
            if may_change != does_change:
                found["may_change" if may_change else "must_stay"].append(dotted)
            if "may_move" in marks:
                found["may_move"].append(f"{dotted}.{marks['may_move']}")
            if "may_grow" in marks:
                found["may_grow"].append(dotted)
            if dotted != leave_out:
                for inner in dict.fromkeys(models_in(field.annotation)):
                    look(inner, f"{dotted}.", may_change)

    look(section, "", False)
    return {mark: tuple(dict.fromkeys(keys)) for mark, keys in found.items()}
