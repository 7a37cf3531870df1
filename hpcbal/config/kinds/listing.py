"""Write out the files of kinds that list what they train: sweeps, defaults, overrides by name."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pydantic import BaseModel

from hpcbal.config.expand import Expansion, expand, with_defaults
from hpcbal.config.kinds.kind import Draft, apply_all
from hpcbal.config.listed import Listed
from hpcbal.config.schema.dnn import MOST_FOLDS
from hpcbal.config.schema.prune import SearchConfig
from hpcbal.config.schema.run import RunConfig
from hpcbal.config.schema.section import Section
from hpcbal.config.source.nodes import YamlNode
from hpcbal.config.source.overrides import Override


def draft_of_list(
    root: YamlNode,
    overrides: Sequence[Override],
    listed: Listed,
    config: type[RunConfig],
    defaults: type[Section],
) -> Draft:
    """Expand `sweeps` and merge `defaults`; overrides of a single item are applied once it exists.

    Args:
        root: the file; it is changed.
        overrides: overrides from the command line.
        listed: what the file lists.
        config: class of the configuration.
        defaults: section that checks `defaults`.
    """
    prefix = f"{listed.key}."
    problems = apply_all([o for o in overrides if not o.path.startswith(prefix)], root)
    expansion = expand(root, listed, _seed_of(root))
    problems += expansion.problems
    full = _written_out(root, expansion, listed, config)
    problems += apply_all([o for o in overrides if o.path.startswith(prefix)], full, listed)
    unknown_keys = frozenset({listed.key} if expansion.problems or expansion.searches else ())
    parts = _parts(root.get("defaults"), expansion, listed, config, defaults)
    return Draft(full, tuple(problems), parts, unknown_keys, tuple(expansion.idle))


def _seed_of(root: YamlNode) -> int:
    """The run's seed; its default if what is given is no number, which is reported elsewhere."""
    node = root.get("seed")
    default: int = RunConfig.model_fields["seed"].default
    is_number = node is not None and isinstance(node.value, int) and not isinstance(node.value, bool)
    return node.value if node is not None and is_number else default


def _written_out(root: YamlNode, expansion: Expansion, listed: Listed, config: type[RunConfig]) -> YamlNode:
    values: dict[Any, YamlNode] = {k: n for k, n in root.value.items() if k not in config.file_only_keys}
    origin = root.get(listed.key) or root.get("sweeps")
    if origin is not None:
        merged = [with_defaults(item, root.get("defaults"), listed) for item in expansion.items]
        items = [member for item in merged for member in _members_of_folds(item)]
        values[listed.key] = YamlNode(items, origin.where, listed.key)
    if expansion.open:
        given, defaults = root.get("searches"), root.get("defaults")
        nothing = YamlNode({}, expansion.open[0].where, "defaults")
        more = [
            YamlNode({**each.value, "defaults": defaults or nothing}, each.where, each.key)
            for each in expansion.open
        ]
        before = given.value if given is not None and given.is_list else []
        values["searches"] = YamlNode([*before, *more], more[0].where, "searches")
    return YamlNode(values, root.where, "")


def _members_of_folds(item: YamlNode) -> list[YamlNode]:
    """Return a member for each fold of an item with `k_fold`; others, and what is wrong, as they are."""
    given = item.get("k_fold") if item.is_mapping else None
    number = None if given is None else given.value
    if not isinstance(number, int) or not 2 <= number <= MOST_FOLDS or item.get("fold") is not None:
        return [item]
    assert given is not None
    name = item.get("name")
    members = []
    for fold in range(1, number + 1):
        values = {**item.value, "fold": YamlNode(fold, given.where, given.key)}
        if name is not None and isinstance(name.value, str):
            values["name"] = YamlNode(f"{name.value}-fold{fold}", name.where, name.key)
        members.append(YamlNode(values, item.where, item.key))
    return members


def _parts(
    given: YamlNode | None,
    expansion: Expansion,
    listed: Listed,
    config: type[RunConfig],
    defaults: type[Section],
) -> tuple[tuple[YamlNode, type[BaseModel]], ...]:
    """`defaults`, the bodies of sweeps that could not be expanded, and their searches that are wrong."""
    parts: list[tuple[YamlNode, type[BaseModel]]] = [] if given is None else [(given, defaults)]
    for body in expansion.incomplete:
        nameless = YamlNode({k: v for k, v in body.value.items() if k != "name"}, body.where, body.key)
        items = YamlNode([nameless], body.where, listed.key)
        parts.append((YamlNode({listed.key: items}, body.where, ""), config))
    parts += [(search, SearchConfig) for search in expansion.searches]
    return tuple(parts)


def schema_of_list(config: type[RunConfig], listed: Listed) -> dict[str, Any]:
    """Return the JSON schema of a file that lists items, with `defaults` and `sweeps`.

    Keys of an item are not required there, but for its name, because `defaults` and sweeps may provide them;
    `hpcbal validate` checks that none is missing in the end.

    Args:
        config: class of the configuration.
        listed: what the file lists.
    """
    schema = config.model_json_schema(by_alias=True)
    definitions, one, item = schema["$defs"], listed.one, listed.item.__name__
    optional = {k: v for k, v in definitions[item].items() if k != "required"}
    definitions[item] = {**optional, "required": ["name"]}
    axes = {"type": "object", "additionalProperties": {"type": "array", "minItems": 1}}
    search = SearchConfig.model_json_schema(by_alias=True)
    definitions |= search.pop("$defs")
    definitions["SearchConfig"] = search
    definitions["SweepConfig"] = {
        **optional,
        "title": "SweepConfig",
        "description": f"A {one} whose keys named in grid (every combination), zip (side by side) or "
        "search (drawn at random) vary.",
        "properties": {
            **optional["properties"],
            "name": {"type": "string", "description": "Template such as resnet-{depth}-w{width}."},
            "grid": {**axes, "description": "Every combination of these values."},
            "zip": {**axes, "description": "These values side by side; lists of equal length."},
            "search": {"$ref": "#/$defs/SearchConfig"},
        },
        "required": ["name"],
    }
    properties = schema["properties"]
    properties["defaults"] = {
        "type": "object",
        "description": f"Defaults for keys that a {one} omits.",
        "additionalProperties": False,
        "properties": {name: optional["properties"][name] for name in listed.default_keys},
    }
    properties["sweeps"] = {
        "type": "array",
        "description": f"Families of {one}s that differ in some keys.",
        "items": {"$ref": "#/$defs/SweepConfig"},
    }
    schema["anyOf"] = [{"required": [listed.key]}, {"required": ["sweeps"]}]
    return schema
