"""Write out what a file lists: merge `defaults`, expand `sweeps`; every value keeps its line number.

A sweep has an item, such as a DNN, for each combination of `grid`, times the rows of `zip`, times the
samples of `search`.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from pydantic import ValidationError

from hpcbal.config.checks.import_check import arguments_of
from hpcbal.config.checks.names import is_by_output
from hpcbal.config.listed import Listed
from hpcbal.config.schema.dnn import DnnConfig
from hpcbal.config.schema.prune import SearchConfig
from hpcbal.config.source.meant import did_you_mean
from hpcbal.config.source.nodes import Key, YamlNode, show

MAX_SWEEP_SIZE = 100_000
SAMPLE = "sample"
"""Placeholder for the number of a sample in names."""
_PLACEHOLDER = re.compile(r"\{([^{}]*)\}")


@dataclass(slots=True)
class Expansion:
    """The items of a file, written out.

    Attributes:
        items: listed ones first, then those of the sweeps in order; `defaults` not yet merged in.
        incomplete: bodies of sweeps that could not be expanded, to be checked as far as possible.
        open: sweeps whose later DNNs are not known yet, as `OpenSearchConfig` has them but for `defaults`.
        searches: `search` sections that are wrong, to be checked by their schema.
        problems: what else was wrong with the sweeps.
        idle: lines in the form of problems, for keys of a search that have no effect.
    """

    items: list[YamlNode] = field(default_factory=list)
    incomplete: list[YamlNode] = field(default_factory=list)
    open: list[YamlNode] = field(default_factory=list)
    searches: list[YamlNode] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    idle: list[str] = field(default_factory=list)


def expand(root: YamlNode, listed: Listed, seed: int) -> Expansion:
    """All items of a list and of `sweeps`; checks here that both are lists.

    Args:
        root: the file.
        listed: what it lists.
        seed: the run's seed, for searches.
    """
    result = Expansion()
    items, sweeps = root.get(listed.key), root.get("sweeps")
    for node, allowed in ((items, f"a list of {listed.one}s"), (sweeps, "a list of sweeps")):
        if node is not None and node.value is not None and not node.is_list:
            result.problems.append(node.problem(f"got {show(node.plain())}, allowed: {allowed}"))
    if items is not None and items.is_list:
        result.items.extend(items.value)
    if sweeps is not None and sweeps.is_list:
        for sweep in sweeps.value:
            _expand_sweep(sweep, listed, seed, result)
    return result


def with_defaults(item: YamlNode, defaults: YamlNode | None, listed: Listed) -> YamlNode:
    """Fill in what `item` omits from `defaults`.

    Sections are completed key by key. An optimizer, a schedule of its learning rate or a loss that has a name
    is not completed, because the rest of the default belongs to another one.
    """
    if defaults is None or not (defaults.is_mapping and item.is_mapping):
        return item
    result = dict(item.value)
    for name in listed.default_keys:
        default = defaults.get(name)
        if default is None:
            continue
        own = item.get(name)
        if own is None:
            result[name] = default
        else:
            result[name] = _completed(own, default, name, listed)
    return YamlNode(result, item.where, item.key)


def _completed(own: YamlNode, default: YamlNode, section: Key, listed: Listed) -> YamlNode:
    """`own` plus what it lacks of `default`; for the key `section` of an item, or within one."""
    if section in listed.may_be_a_name and isinstance(default.value, str):
        default = YamlNode({"name": default}, default.where, default.key)
    is_other = section in listed.have_a_name and own.is_mapping and own.get("name") is not None
    if is_other or not (own.is_mapping and default.is_mapping):
        return own
    of_outputs = section in listed.by_output and is_by_output(own)
    if of_outputs and not is_by_output(default):
        return own
    result = dict(own.value)
    for key, child in default.value.items():
        inner = section if of_outputs else key
        result[key] = _completed(result[key], child, inner, listed) if key in result else child
    return YamlNode(result, own.where, own.key)


def _expand_sweep(sweep: YamlNode, listed: Listed, seed: int, result: Expansion) -> None:
    if not sweep.is_mapping:
        allowed = f"a mapping with name, grid, zip or search, and keys of a {listed.one}"
        result.problems.append(sweep.problem(f"got {show(sweep.plain())}, allowed: {allowed}"))
        return
    body = {k: v for k, v in sweep.value.items() if k not in listed.item.sweep_keys}
    base = YamlNode(body, sweep.where, sweep.key)
    problems: list[str] = []
    axes = {name: _axes(sweep, listed, name, problems) for name in ("grid", "zip")}
    samples = _samples(sweep, listed, seed, problems, result.searches)
    drawn = samples[0] if samples else {}
    search = sweep.get("search")
    is_open = samples is not None and search is not None and search.plain().get("sampler") == "tpe"
    if samples is not None and search is not None and not is_open:
        result.idle += _idle_keys(search)
    if is_open and search is not None:
        _check_open(sweep, search, listed, problems)
    _check_axes(sweep, listed, axes["grid"], axes["zip"], samples, problems)
    swept = [*axes["grid"], *axes["zip"], *drawn]
    if samples is not None:
        _check_template(base, swept, problems)
    if problems or samples is None:
        result.problems.extend(problems)
        result.incomplete.append(base)
        return
    name = base.get("name")
    name = name if name is not None and isinstance(name.value, str) else None
    template = [] if name is None else _template(name.value, swept)
    for values in _combinations(axes["grid"], axes["zip"], samples):
        item = YamlNode(dict(base.value), base.where, base.key)
        for dotted, value in values.items():
            problem = None if dotted == SAMPLE else _put(item, dotted, value)
            if problem is not None:
                result.problems.append(problem)
                result.incomplete.append(base)
                return
        if name is not None:
            item.value["name"] = YamlNode(_fill(template, values), name.where, name.key)
        result.items.append(item)
    if is_open and search is not None:
        first = result.items[len(result.items) - len(samples) :]
        result.open.append(_open_search(base, search, first, samples))


def _idle_keys(search: YamlNode) -> list[str]:
    """Keys of a search at random that only proposals use, unless at their default."""
    fields = SearchConfig.model_fields
    given = {"startup": fields["startup"], "for": fields["purpose"]}
    return [
        node.problem(f"got {show(node.plain())}, which has an effect only with sampler: tpe")
        for key, field_ in given.items()
        if (node := search.get(key)) is not None and node.plain() != field_.default
    ]


def _check_open(sweep: YamlNode, search: YamlNode, listed: Listed, problems: list[str]) -> None:
    """A sweep whose later DNNs are proposed one by one has neither grid nor zip, and numbers in its names."""
    if listed.item is not DnnConfig:
        problems.append(search.value["sampler"].problem(f"got 'tpe', allowed for a {listed.one}: random"))
    for axis in ("grid", "zip"):
        node = sweep.get(axis)
        if node is not None and node.value:
            problems.append(node.problem("allowed beside search.sampler: tpe: search.space only"))
    name = sweep.get("name")
    if name is None or not isinstance(name.value, str) or f"{{{SAMPLE}}}" not in name.value:
        problems.append((name or sweep).problem("allowed with search.sampler: tpe: a name with {sample}"))


def _open_search(
    base: YamlNode, search: YamlNode, first: Sequence[YamlNode], samples: Sequence[Mapping[str, YamlNode]]
) -> YamlNode:
    """The sweep as `OpenSearchConfig` has it, with the drawn values of its first DNNs."""
    name = base.value["name"]
    space = SearchConfig.model_validate(search.plain()).space
    drawn: dict[Any, YamlNode] = {}
    for item, row in zip(first, samples, strict=True):
        values = {}
        for key, node in row.items():
            if key != SAMPLE:
                choice = space[key].choice
                plain = node.plain() if choice is None else choice.index(node.plain())
                values[key] = YamlNode(plain, search.where, search.key)
        drawn[item.value["name"].value] = YamlNode(values, search.where, search.key)
    parts = {
        "name": name,
        "search": search,
        "dnn": YamlNode({k: v for k, v in base.value.items() if k != "name"}, base.where, base.key),
        "drawn": YamlNode(drawn, search.where, search.key),
    }
    return YamlNode(parts, search.where, search.key)


def _axes(sweep: YamlNode, listed: Listed, name: str, problems: list[str]) -> dict[str, list[YamlNode]]:
    node = sweep.get(name)
    if node is None or node.value is None:
        return {}
    if not node.is_mapping:
        problems.append(node.problem(f"got {show(node.plain())}, allowed: {{dotted.key: [values]}}"))
        return {}
    axes: dict[str, list[YamlNode]] = {}
    arguments = _arguments(sweep, listed)
    for key, values in node.value.items():
        if not isinstance(key, str) or not values.is_list or not values.value:
            problems.append(
                values.problem(f"got {show(values.plain())}, allowed: a list of at least one value")
            )
        else:
            axes[key] = values.value
            problem = listed.problem_of_swept(key, arguments)
            if problem is not None:
                problems.append(values.problem(problem))
    return axes


def _arguments(sweep: YamlNode, listed: Listed) -> tuple[str, ...] | None:
    """The names that `args` in a sweep may have; None if they are unknown."""
    called = sweep.get(listed.called)
    return None if called is None else arguments_of(called.value, listed.contract)


def _samples(
    sweep: YamlNode, listed: Listed, seed: int, problems: list[str], wrong: list[YamlNode]
) -> list[dict[str, YamlNode]] | None:
    """The drawn values of each sample, and its number as `SAMPLE`; one empty row if there is no `search`.

    Args:
        problems: gets what only a sweep can check.
        wrong: gets the section if its schema rejects it; then None is returned.
    """
    node = sweep.get("search")
    if node is None or node.value is None:
        return [{}]
    try:
        search = SearchConfig.model_validate(node.plain())
    except ValidationError as error:
        wrong.append(node)
        missing = [e["loc"][0] for e in error.errors() if e["type"] == "missing" and len(e["loc"]) == 1]
        problems += [node.problem(f"missing key {name!r}") for name in missing]
        return None
    space = node.value["space"]
    arguments = _arguments(sweep, listed)
    found = {key: listed.problem_of_swept(key, arguments) for key in search.space}
    problems += [space.value[key].problem(problem) for key, problem in found.items() if problem is not None]
    if search.samples > MAX_SWEEP_SIZE:
        problems.append(sweep.problem(_too_many(search.samples, listed)))
        return None
    name = sweep.get("name")
    rows = []
    draws = search.draws(seed, str(None if name is None else name.plain()))
    for number, drawn in enumerate(draws[: search.num_first]):
        row = {SAMPLE: YamlNode(number, node.where, node.key)}
        for key, value in drawn.items():
            given = space.value[key]
            is_choice = search.space[key].kind == "choice"
            row[key] = (
                given.value["choice"].value[int(value)]
                if is_choice
                else YamlNode(value, given.where, given.key)
            )
        rows.append(row)
    return rows


def _too_many(size: int, listed: Listed) -> str:
    return f"makes {size} {listed.one}s, allowed: at most {MAX_SWEEP_SIZE}"


def _check_axes(
    sweep: YamlNode,
    listed: Listed,
    grid: Mapping[str, list[YamlNode]],
    zipped: Mapping[str, list[YamlNode]],
    samples: Sequence[Mapping[str, YamlNode]] | None,
    problems: list[str],
) -> None:
    searched = samples[0] if samples else {}
    if not grid and not zipped and samples is not None and not searched and not problems:
        message = f"give grid, zip or search, or list the {listed.one} under {listed.key}"
        problems.append(sweep.problem(f"sweeps nothing: {message}"))
    zip_node, grid_node = sweep.get("zip"), sweep.get("grid")
    lengths = {key: len(values) for key, values in zipped.items()}
    if zip_node is not None and len(set(lengths.values())) > 1:
        given = ", ".join(f"{key} has {n}" for key, n in lengths.items())
        problems.append(zip_node.problem(f"got lists of unequal length ({given}), allowed: equal lengths"))
    both = sorted(set(grid) & set(zipped))
    if grid_node is not None and both:
        problems.append(
            grid_node.problem(f"got {', '.join(both)} in grid and in zip, allowed: in one of them")
        )
    search_node, again = sweep.get("search"), sorted(set(searched) & {*grid, *zipped})
    if search_node is not None and again:
        problems.append(
            search_node.problem(
                f"got {', '.join(again)} in search and in grid or zip, allowed: in one of them"
            )
        )
    size = max(lengths.values(), default=1) * max(1, len(samples or ()))
    for values in grid.values():
        size *= len(values)
    if size > MAX_SWEEP_SIZE:
        problems.append(sweep.problem(_too_many(size, listed)))


def _check_template(base: YamlNode, swept: list[str], problems: list[str]) -> None:
    name = base.get("name")
    if name is None or not isinstance(name.value, str):
        return
    short = [key.rpartition(".")[2] for key in swept]
    known = swept + [s for s in short if short.count(s) == 1]
    for placeholder in _PLACEHOLDER.findall(name.value):
        if placeholder not in known:
            allowed = ", ".join("{" + k + "}" for k in dict.fromkeys(known)) or "none"
            hint = did_you_mean(placeholder, known)
            problems.append(name.problem(f"got {{{placeholder}}} in the name, allowed: {allowed}{hint}"))


def _combinations(
    grid: Mapping[str, list[YamlNode]],
    zipped: Mapping[str, list[YamlNode]],
    samples: Sequence[Mapping[str, YamlNode]],
) -> Iterator[dict[str, YamlNode]]:
    rows = [dict(zip(zipped, row, strict=True)) for row in zip(*zipped.values(), strict=True)] or [{}]
    for values in itertools.product(*grid.values()):
        for row, sample in itertools.product(rows, samples):
            yield {**dict(zip(grid, values, strict=True)), **row, **sample}


def _put(item: YamlNode, dotted: str, value: YamlNode) -> str | None:
    """Set a swept value; return the problem if the path to it is not a section."""
    *way, last = dotted.split(".")
    node = item
    for part in way:
        child = node.own_child(part)
        if child is None or child.value is None:
            child = YamlNode({}, value.where, f"{node.key}.{part}")
            node.value[part] = child
        if not child.is_mapping:
            return value.problem(f"{part} is {show(child.plain())}, not a section with keys")
        node = child
    node.value[last] = value
    return None


def _template(name: str, swept: Sequence[str]) -> list[str]:
    """The text of a name before, between and after its placeholders, which become full keys: every other."""
    parts = _PLACEHOLDER.split(name)
    for i, wanted in enumerate(parts):
        if i % 2 and wanted not in swept:
            parts[i] = next(key for key in swept if key.rpartition(".")[2] == wanted)
    return parts


def _fill(template: Sequence[str], values: Mapping[str, YamlNode]) -> str:
    return "".join(_as_name(values[part].plain()) if i % 2 else part for i, part in enumerate(template))


def _as_name(value: Any) -> str:
    """A swept value inside a name; of an import path only the callable, of operations their names."""
    if isinstance(value, bool) or value is None:
        return str(value).lower()
    if isinstance(value, list):
        return "-".join(_as_name(item) for item in value) or "none"
    if isinstance(value, dict):
        return "-".join(_as_name(key) for key in value)
    return value.rpartition(":")[2] if isinstance(value, str) else str(value)
