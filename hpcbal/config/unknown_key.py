"""Say which key was meant by one that does not exist."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping

from pydantic import BaseModel

from hpcbal.config.callables import APP, DATASET, MODEL
from hpcbal.config.checks.import_check import arguments_of
from hpcbal.config.listed import DNNS, JOBS, LISTED, Listed
from hpcbal.config.schema.document import DEFAULT_KEYS, JOB_DEFAULT_KEYS, Defaults, JobDefaults
from hpcbal.config.schema.fields import all_keys, field_at, keys_of, models_in
from hpcbal.config.schema.run import RunConfig
from hpcbal.config.schema.section import Section
from hpcbal.config.source.meant import Candidate, hint_of, meant
from hpcbal.config.source.nodes import Path, YamlNode, join_key

_CONTRACTS = {"dataset": DATASET, "model": MODEL, "app": APP}
"""By the key that names a callable, in sections whose `args` are its arguments."""
_OF_DEFAULTS: Mapping[type[BaseModel], Listed] = {Defaults: DNNS, JobDefaults: JOBS}
_GONE: Mapping[Path, str] = {("balance", "guard"): "leave it out, the guard of lb-bsp-cpu is always on"}
"""Advice for keys that earlier versions had."""
_OPERATIONS, _SEARCHES = "preprocessing.", "searches."
"""Where the operations are, and what becomes of `search` of sweeps."""
_NOT_TO_WRITE = re.compile(rf"dnns\.augment\.|{_OPERATIONS}of$|{_SEARCHES}(?!search\.)")
"""Operations again, what stands beside one, and what sweeps become."""
_DEFAULT_KEYS = {"dnns": DEFAULT_KEYS, "jobs": JOB_DEFAULT_KEYS}


def unknown_key(path: Path, root: YamlNode, model: type[BaseModel]) -> str:
    """Return the problem with an unknown key: what was meant, and what is allowed there.

    A key that is proposed exists, and is accepted where it is written.

    Args:
        path: of the key.
        root: the values that were validated, with their origins.
        model: the model that they were validated against.
    """
    node, inside = root.deepest(path)
    if path in _GONE:
        return node.problem(f"this key is gone; {_GONE[path]}")
    owner, _ = field_at(model, path[:-1])
    known = keys_of(owner)
    also = ""
    if issubclass(owner, Section):
        known += owner.sweep_keys if node.key.startswith("sweeps.") else owner.file_only_keys
        also = owner.also_allowed
    candidates = list(_candidates(path[:-1], root, model, is_set=node.where.startswith("--set ")))
    candidates += [Candidate(name, join_key(_dotted(path[:-1]), name), True) for name in known]
    listed = _OF_DEFAULTS.get(model) or next((LISTED[each] for each in _items_of(model)), None)
    if model in _OF_DEFAULTS and listed is not None:
        candidates += [Candidate("", name, False) for name in keys_of(listed.item) if name not in known]
    name = str(path[-1])
    section, rest = root.deepest(path[:-1])
    takes_any = not rest and _has_args(owner) and _arguments(section, owner) is None
    elsewhere = list(_elsewhere(model)) if issubclass(model, RunConfig) else []
    found = meant(
        name, candidates, elsewhere=elsewhere, holds_keys=node.is_mapping, takes_any_argument=takes_any
    )
    in_items = ""
    if found in elsewhere and isinstance(found, Candidate):
        in_items = f" (did you mean '{found.word}', {_place(found, listed)}?)"
    elif listed is not None and isinstance(found, Candidate):
        key = found.full.removeprefix(f"{listed.key}.")
        in_items = f" (did you mean '{key}', a key of each {listed.one} in {listed.key} or sweeps?)"
    given = f"got '{name}'" if inside else "unknown key"  # `- flip` is short for `- flip: {}`
    return node.problem(f"{given}{hint_of(found, in_items)}, allowed: {', '.join(known)}{also}")


def _candidates(
    section: Path, root: YamlNode, model: type[BaseModel], *, is_set: bool
) -> Iterator[Candidate]:
    """All keys of a file, from those in this section outwards; in each section those of few parts first."""
    for length in range(len(section), -1, -1):
        prefix = section[:length]
        node, rest = root.deepest(prefix)
        if rest or not node.is_mapping:
            continue
        owner, _ = field_at(model, prefix)
        is_near = prefix == section
        listed = LISTED.get(next(iter(_items_of(owner)), Section)) if not prefix else None
        keys = [*_keys_to_write(owner), *(f"args.{name}" for name in _arguments(node, owner) or ())]
        if not prefix:
            keys += _arguments_inside(node, owner)
        found = []
        for key in keys:
            shown = key if is_near or not node.key else join_key(node.key, key)
            if listed is not None and key.startswith(f"{listed.key}."):
                shown = _place_of_item_key(key, node, listed, is_set=is_set)
            is_own = is_near and key.rpartition(".")[0] in ("", "args")
            found.append(Candidate(shown, join_key(_dotted(prefix), key), is_own))
        yield from sorted(found, key=lambda each: (each.shown.count("."), each.shown == ""))


def _elsewhere(model: type[BaseModel]) -> Iterator[Candidate]:
    """The keys that cannot be written alone, those of few parts first.

    Operations take names that others take, too: their arguments are left out unless only one has the name.
    """
    alone = set(_keys_to_write(model))
    others = [key for key in all_keys(model) if key not in alone and not _NOT_TO_WRITE.match(key)]
    num_operations = Counter(_word(key) for key in others if _is_argument_of_operation(key))
    for key in sorted(others, key=lambda each: each.count(".")):
        if not (_is_argument_of_operation(key) and num_operations[_word(key)] > 1):
            yield Candidate("", key, False)


def _is_argument_of_operation(key: str) -> bool:
    return key.startswith(_OPERATIONS) and key.count(".") > 1


def _word(key: str) -> str:
    return key.rpartition(".")[2]


def _place(found: Candidate, listed: Listed | None) -> str:
    """Where a key is written that cannot be written alone, in words."""
    section = found.full.rpartition(".")[0]
    if f"{section}." == _OPERATIONS:
        return "an operation of preprocessing"
    if section.startswith(_OPERATIONS):
        return f"an argument of {_word(section)} in preprocessing"
    if section.startswith(_SEARCHES):
        return f"a key of {section.removeprefix(_SEARCHES)} in sweeps"
    if listed is not None and section.startswith(f"{listed.key}."):
        inner = section.removeprefix(f"{listed.key}.")
        if inner.partition(".")[0] in _DEFAULT_KEYS[listed.key]:
            return f"a key of defaults.{inner}"
    return f"a key of {section}"


def _place_of_item_key(key: str, root: YamlNode, listed: Listed, *, is_set: bool) -> str:
    """Where a key of each item is written: among the defaults; else in the first item, if that can be set."""
    rest = key.removeprefix(f"{listed.key}.")
    if rest.partition(".")[0] in _DEFAULT_KEYS[listed.key]:
        return f"defaults.{rest}"
    items = root.get(listed.key)
    if not is_set or items is None or not items.is_list or not items.value:
        return ""
    name = items.value[0].get("name")
    is_plain = name is not None and isinstance(name.value, str) and "=" not in name.value
    return f"{listed.key}.{name.value if name is not None and is_plain else 0}.{rest}"


def _arguments_inside(root: YamlNode, model: type[BaseModel]) -> Iterator[str]:
    """The arguments of the dataset, and of the first item that has some."""
    data = root.get("data")
    field = model.model_fields.get("data")
    if data is not None and data.is_mapping and field is not None:
        owner = next(models_in(field.annotation))
        yield from (f"data.args.{name}" for name in _arguments(data, owner) or ())
    for item in _items_of(model):
        listed = LISTED[item]
        items = root.get(listed.key)
        if items is not None and items.is_list and items.value:
            yield from (f"{listed.key}.args.{name}" for name in _arguments(items.value[0], item) or ())


def _items_of(model: type[BaseModel]) -> list[type[BaseModel]]:
    """The sections of items that the file of this model lists."""
    inner = (each for field in model.model_fields.values() for each in models_in(field.annotation))
    return [each for each in inner if each in LISTED]


def _arguments(node: YamlNode, owner: type[BaseModel]) -> tuple[str, ...] | None:
    """The names that `args` in a section may have; None if they are unknown, or if it has no `args`."""
    if not _has_args(owner):
        return None
    key = next(key for key in _CONTRACTS if key in owner.model_fields)
    called = node.get(key)
    default = owner.model_fields[key].default
    return arguments_of(default if called is None else called.value, _CONTRACTS[key])


def _has_args(owner: type[BaseModel]) -> bool:
    """Whether a section names a callable, and its `args`."""
    return "args" in owner.model_fields and any(key in owner.model_fields for key in _CONTRACTS)


def _keys_to_write(model: type[BaseModel], prefix: str = "") -> Iterator[str]:
    """Dotted path of every key that can be written alone: none in optional sections or unnamed items."""
    for name, field in model.model_fields.items():
        key = f"{prefix}{field.alias or name}"
        yield key
        for inner in dict.fromkeys(models_in(field.annotation)):
            if inner in LISTED or inner is field.annotation:
                yield from _keys_to_write(inner, f"{key}.")


def _dotted(path: Path) -> str:
    return ".".join(str(part) for part in path if not isinstance(part, int))
