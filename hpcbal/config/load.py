"""From a YAML file and `--set` texts to a frozen configuration, or to a list of all its problems."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeAlias, cast

import yaml
from pydantic import ValidationError
from pydantic_core import ErrorDetails

from hpcbal.config.checks.names import keys_not_text
from hpcbal.config.imports import add_import_roots, hidden_modules
from hpcbal.config.kinds.kind import C, Draft, KindFile
from hpcbal.config.messages import explain
from hpcbal.config.schema.ensemble import EnsembleConfig
from hpcbal.config.schema.jobs import JobsConfig
from hpcbal.config.schema.paramserver import ParamServerConfig
from hpcbal.config.schema.run import RunConfig
from hpcbal.config.source.given import GivenConfig
from hpcbal.config.source.meant import did_you_mean
from hpcbal.config.source.nodes import YamlNode, show
from hpcbal.config.source.overrides import Override, parse_overrides
from hpcbal.config.source.yaml_source import Dumper, parse_yaml, read_yaml
from hpcbal.errors import MOST_PROBLEMS, ConfigError
from hpcbal.garbage import without_garbage_collection
from hpcbal.kinds import DEFAULT_KIND, KINDS, Kind

AnyConfig: TypeAlias = EnsembleConfig | ParamServerConfig | JobsConfig
"""The configuration of any kind of run."""


def load_config(
    path: str | os.PathLike[str],
    overrides: Sequence[str] = (),
    *,
    check_imports: bool = False,
    warn: Callable[[str], None] | None = None,
    beforehand: bool = False,
    import_roots: Sequence[str] = (),
) -> AnyConfig:
    """Read and check a configuration.

    The directory of the file and the current one become importable. Relative paths in the file are relative
    to the current directory.

    Args:
        path: YAML file, or a `GivenConfig`.
        overrides: texts `a.b=c`; DNNs by name or index, e.g. `dnns.resnet8.batch_size=64`.
        check_imports: also check that models and datasets exist at their import paths and accept the given
            arguments, and that required packages are installed; this runs no user code.
        warn: called with a line for each key that is valid but has no effect (see `keys_without_effect`), or
            that may keep a run from training (`walltime_warnings`), and for each module of the user that
            another one hides (`hidden_modules`).
        beforehand: the allocation is not known yet: also warn of keys that may not fit it (see
            `size_warnings`), and of data and frameworks that are not here (`data_warnings`,
            `framework_warnings`).
        import_roots: more directories with modules; see `add_import_roots`.

    Returns:
        The configuration, of the class for the file's `kind`.

    Raises:
        ConfigError: with every problem that was found, one line each; for an unknown kind with only that.
    """
    with without_garbage_collection():
        add_import_roots(path, import_roots)
        return _load(path, overrides, check_imports, warn, beforehand)


def _load(
    path: str | os.PathLike[str],
    overrides: Sequence[str],
    check_imports: bool,
    warn: Callable[[str], None] | None,
    beforehand: bool,
) -> AnyConfig:
    root = path.node() if isinstance(path, GivenConfig) else read_yaml(os.fspath(path))
    overrides_read, problems = parse_overrides(overrides)
    kind = kind_of(root, overrides_read).file
    draft = kind.draft(root, overrides_read)
    full = draft.full
    full.value.setdefault("name", YamlNode(_name_from(Path(path)), f"{path}:1", "name"))
    config = _checked(draft, kind, full if check_imports else None, problems)
    if warn is not None:
        lines = sorted(
            [*draft.idle, *kind.warnings(config, full, beforehand)], key=_position
        ) + hidden_modules(path)
        for line in lines[:MOST_PROBLEMS]:
            warn(line)
        if len(lines) > MOST_PROBLEMS:
            warn(f"{path}: {len(lines) - MOST_PROBLEMS} more keys have no effect, or may not fit")
    return config


def _checked(draft: Draft, kind: KindFile[C], imports_of: YamlNode | None, problems: Sequence[str] = ()) -> C:
    """Return the configuration of a draft; raises ConfigError with `problems` and what else is wrong.

    Args:
        imports_of: the configuration, or a part of it, whose import paths are checked; None: none are.
    """
    config, found = _validate(draft, kind)
    every = [*problems, *draft.problems, *found, *_check_parts(draft)]
    every += [*keys_not_text(draft.full), *kind.problems(draft.full)]
    if imports_of is not None:
        every += kind.environment_problems(imports_of)
    if every or config is None:
        raise ConfigError(sorted(dict.fromkeys(every), key=_position))
    return config


def load_joining(
    path: str | os.PathLike[str], run: EnsembleConfig, import_roots: Sequence[str] = ()
) -> EnsembleConfig:
    """Return the configuration of an ensemble with the DNNs of a file that join it, checked as a whole.

    The file has `dnns`, `sweeps`, `defaults` and, for emulated runs, `backend.rates`; all else belongs to the
    run.

    Args:
        path: the file.
        run: the ensemble, with all DNNs that it has so far.
        import_roots: more directories with modules; see `add_import_roots`.

    Raises:
        ConfigError: with every problem of the DNNs of the file, and of the run with them.
    """
    add_import_roots(path, import_roots)
    return join(read_yaml(os.fspath(path)), run, str(path))


def join(file: YamlNode, run: EnsembleConfig, path: str) -> EnsembleConfig:
    """Do the same for a file that is read already; for arguments and errors see `load_joining`."""
    kind = KINDS[DEFAULT_KIND].file
    if not file.is_mapping or kind_of(file) is not KINDS[DEFAULT_KIND]:
        raise ConfigError([f"{path}: allowed: a file with dnns or sweeps of DNNs"])
    added_rates = _rates_of(file)
    foreign = [node for key, node in file.value.items() if key not in JOINING_KEYS]
    if added_rates is None and file.get("backend") is not None:
        foreign.append(file.value["backend"])
    if foreign:
        what = "belongs to the run, and a DNN that joins cannot change it; remove the key"
        raise ConfigError([node.problem(what) for node in foreign])
    known = parse_yaml(resolved_yaml(run), "", fixed_where=_OF_RUN)
    draft = kind.draft(YamlNode({**file.value, "seed": known.value["seed"]}, file.where, file.key), [])
    new = draft.full.get("dnns")
    if new is None:
        raise ConfigError([f"{path}: missing key 'dnns' or 'sweeps'"])
    if (searches := draft.full.get("searches")) is not None:
        raise ConfigError(
            [searches.problem("got search.sampler: tpe, allowed for DNNs that join a run: random")]
        )
    if new.is_list and not new.value and not draft.problems:
        raise ConfigError([new.problem("got no DNNs, allowed: at least one DNN that joins the run")])
    values = {**known.value, "dnns": YamlNode([*known.value["dnns"].value, *new.value], new.where, new.key)}
    if added_rates:
        backend = known.value["backend"]
        rates = backend.value["rates"]
        both = YamlNode({**rates.value, **added_rates}, rates.where, rates.key)
        values["backend"] = YamlNode({**backend.value, "rates": both}, backend.where, backend.key)
    merged = Draft(YamlNode(values, known.where, ""), draft.problems, draft.parts, draft.unknown_keys)
    only_new = YamlNode({**values, "dnns": new}, known.where, "")
    try:
        return cast("EnsembleConfig", _checked(merged, kind, only_new))
    except ConfigError as error:
        raise ConfigError([_of_joined(problem, path) for problem in error.problems]) from error


def _of_joined(problem: str, path: str) -> str:
    """Say of a problem of the whole run which file has brought it: the run had none before."""
    return f"{path}: with its DNNs, {problem}" if problem.startswith(_OF_RUN) else problem


_OF_RUN = "the run's configuration"

JOINING_KEYS = ("schema", "kind", "name", "dnns", "sweeps", "defaults", "backend")
"""The keys of a file of DNNs that join a run; of `backend` it has only `rates`."""


def _rates_of(file: YamlNode) -> dict[Any, YamlNode] | None:
    """The emulated rates of a file; None if its `backend` has other keys."""
    backend = file.get("backend")
    if backend is None or backend.value is None:
        return {}
    if not backend.is_mapping or backend.value.keys() != {"rates"} or not backend.value["rates"].is_mapping:
        return None
    return dict(backend.value["rates"].value)


def kind_of(root: YamlNode, overrides: Sequence[Override] = ()) -> Kind:
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


def load_of_kind(
    kind: type[C],
    path: str | os.PathLike[str],
    overrides: Sequence[str] = (),
    *,
    check_imports: bool = False,
    warn: Callable[[str], None] | None = None,
    import_roots: Sequence[str] = (),
    hint: str = "",
) -> C:
    """Read and check the configuration of one kind of run, for what works with that kind only.

    Args:
        kind: class of the configuration.
        path, overrides, check_imports, warn, import_roots: as for `load_config`.
        hint: what to do with others, after a semicolon.

    Raises:
        ConfigError: with every problem that was found, or because the file is of another kind.
    """
    config = load_config(path, overrides, check_imports=check_imports, warn=warn, import_roots=import_roots)
    if not isinstance(config, kind):
        allowed = kind.model_fields["kind"].default
        raise ConfigError([f"{path}: kind: got {config.kind}, allowed here: {allowed}{hint}"])
    return config


def load_ensemble(
    path: str | os.PathLike[str], overrides: Sequence[str] = (), **options: Any
) -> EnsembleConfig:
    """Read and check the configuration of an ensemble; options and errors as for `load_of_kind`."""
    return load_of_kind(EnsembleConfig, path, overrides, **options)


def resolved_yaml(config: RunConfig) -> str:
    """The configuration with every key written out; loading it gives an equal one."""
    values = _plain(config.model_dump(by_alias=True))
    text: str = yaml.dump(values, Dumper=Dumper, sort_keys=False, allow_unicode=True, width=100)
    return text


def _name_from(path: Path) -> str:
    """The file's stem, turned into a valid directory name."""
    name = re.sub(r"[^A-Za-z0-9._+=,@-]+", "-", path.stem).lstrip("._+=,@-")[:100]
    return name or DEFAULT_KIND


def _validate(draft: Draft, kind: KindFile[C]) -> tuple[C | None, list[str]]:
    """(config or None, problems)."""
    try:
        return kind.config.model_validate(draft.full.plain()), []
    except ValidationError as error:
        known = [e for e in _errors(error) if len(e["loc"]) != 1 or e["loc"][0] not in draft.unknown_keys]
        return None, explain(known, draft.full, kind.config)


def _check_parts(draft: Draft) -> list[str]:
    """Check what is there; what is missing may come from elsewhere."""
    problems: list[str] = []
    for node, model in draft.parts:
        try:
            model.model_validate(node.plain())
        except ValidationError as error:
            present = [e for e in _errors(error) if e["type"] != "missing"]
            problems += explain(present, node, model)
    return problems


def _errors(error: ValidationError) -> list[ErrorDetails]:
    return error.errors(include_url=False, include_input=False)


def _position(problem: str) -> tuple[int, int]:
    """Sort key: problems in the file by line, then those of `--set` in the given order."""
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
