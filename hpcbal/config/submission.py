"""Jobs and DNNs that join a run that has begun: what may join it, and the file that keeps it."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeAlias, TypeVar

import yaml
from pydantic import ValidationError

from hpcbal.config.expand import expand
from hpcbal.config.listed import DNNS, JOBS, Listed
from hpcbal.config.load import join, resolved_yaml
from hpcbal.config.schema.ensemble import BackendConfig, EnsembleConfig
from hpcbal.config.schema.jobs import JobsConfig, SharedJobConfig
from hpcbal.config.schema.prune import OpenSearchConfig
from hpcbal.config.source.yaml_source import Dumper, parse_yaml, read_yaml
from hpcbal.errors import ConfigError
from hpcbal.events.ensemble import WITHOUT_ROUNDS

OWN_KEYS = ("kind", "name", "jobs", "sweeps", "defaults")
"""The keys of a file of jobs to submit; all other keys belong to the run."""


ListConfig: TypeAlias = EnsembleConfig | JobsConfig
"""The configurations of runs that others may join."""
C = TypeVar("C", EnsembleConfig, JobsConfig)


@dataclass(frozen=True, slots=True)
class Submission:
    """One file of what joins a run.

    Attributes:
        items: the jobs or DNNs, in the order of the file.
        import_roots: directories with their modules, which are searched after those of the run.
        rates: emulated rates of DNNs, by DNN and number of slots.
        search: name of the search that has proposed the DNNs; empty if the user has added them.
        drawn: the values that it has proposed, by DNN and key.
    """

    items: tuple[Any, ...]
    import_roots: tuple[str, ...] = ()
    rates: Mapping[str, Mapping[int, float]] = field(default_factory=dict)
    search: str = ""
    drawn: Mapping[str, Mapping[str, float | int]] = field(default_factory=dict)


def listed_of(config: ListConfig) -> Listed:
    """Return how files list what a run trains: DNNs, or jobs."""
    return JOBS if isinstance(config, JobsConfig) else DNNS


def names_of(config: ListConfig) -> list[str]:
    """The names of all that a run lists."""
    return [item.name for item in getattr(config, listed_of(config).key)]


def with_items(config: C, submission: Submission) -> C:
    """The configuration with what joins it; what is listed already under the same name stays as it is."""
    names = set(names_of(config))
    new: list[Any] = [item for item in submission.items if item.name not in names]
    if not new:
        return config
    key: str = listed_of(config).key
    update: dict[str, Any] = {key: (*getattr(config, key), *new)}
    if isinstance(config, EnsembleConfig):
        rates = {name: own for name, own in submission.rates.items() if name not in names}
        update["backend"] = config.backend.model_copy(update={"rates": {**config.backend.rates, **rates}})
        drawn = {name: own for name, own in submission.drawn.items() if name not in names}
        update["searches"] = tuple(
            each.model_copy(update={"drawn": {**each.drawn, **drawn}})
            if each.name == submission.search
            else each
            for each in config.searches
        )
    return config.model_copy(update=update)


def submission_problems(run: JobsConfig, jobs: Sequence[SharedJobConfig]) -> list[str]:
    """Why valid jobs cannot join a run: one sentence for each problem.

    Args:
        run: the run, with all jobs that were submitted before.
        jobs: jobs that are to join it.
    """
    names = {job.name.casefold(): job.name for job in run.jobs}
    problems = [
        f"jobs.{job.name}: the run has a job {names[job.name.casefold()]!r} already, allowed: a different "
        "name, not only by upper and lower case"
        for job in jobs
        if job.name.casefold() in names
    ]
    if run.schedule.groups is not None:
        problems.append(
            "schedule.groups: the run has fixed groups, and a submitted job is in none of them; submit jobs "
            "to runs with groups: null, or with paradigm harmony or isolated"
        )
    if any(machine.speed != 1.0 for machine in run.machines):
        problems += [
            f"jobs.{job.name}.seconds_per_sample: got null, but machines of the run have a speed; give the "
            "time of a sample at speed 1"
            for job in jobs
            if job.seconds_per_sample is None
        ]
    return problems


def keys_of_run(path: Path) -> list[str]:
    """A sentence for each key of a file of jobs that only a run can have.

    Args:
        path: a file that `load_config` accepts.
    """
    return [
        node.problem("is a matter of the run, and a submitted job cannot change it; remove the key")
        for key, node in read_yaml(path).value.items()
        if key not in OWN_KEYS
    ]


def kind_problems(path: Path) -> list[str]:
    """Why a file is not one of jobs, if it does not say its kind: it would be read as one of DNNs.

    Args:
        path: a file in YAML.
    """
    keys = read_yaml(path).value
    if isinstance(keys, dict) and "kind" not in keys:
        return [f"{path}: missing key 'kind', allowed here: kind: jobs"]
    return []


def submission_yaml(
    config: ListConfig,
    import_roots: Sequence[str],
    known: Sequence[str] = (),
    *,
    search: str = "",
    drawn: Mapping[str, Mapping[str, float | int]] | None = None,
) -> str:
    """The jobs or DNNs of a configuration as `read_submission` reads them.

    Args:
        config: what was loaded from the user's file.
        import_roots: directories with their modules.
        known: names that are left out, because the run has them.
        search, drawn: see `Submission`.
    """
    key, values = listed_of(config).key, yaml.safe_load(resolved_yaml(config))
    found: dict[str, Any] = {"search": search} if search else {}
    found |= {
        "import_roots": [*import_roots],
        key: [item for item in values[key] if item["name"] not in known],
    }
    if isinstance(config, EnsembleConfig):
        found["rates"] = {n: own for n, own in values["backend"]["rates"].items() if n not in known}
    if search:
        found["drawn"] = drawn or {}
    text: str = yaml.dump(found, Dumper=Dumper, sort_keys=False, allow_unicode=True, width=100)
    return text


def read_submission(path: Path, listed: Listed) -> Submission:
    """Read a file that holds what `submission_yaml` returned.

    Raises:
        ConfigError: if it is damaged, or was written by hand.
    """
    try:
        values = read_yaml(path).plain()
    except ConfigError as error:
        advice = "damaged: remove it; a search proposes again, and what you have added you can add again"
        raise ConfigError([*error.problems, f"{path}: {advice}"]) from error
    try:
        items: Any = tuple(listed.item.model_validate(item) for item in values[listed.key])
        roots = tuple(str(root) for root in values["import_roots"])
        rates = BackendConfig.model_validate({"rates": values.get("rates", {})}).rates
        search, drawn = str(values.get("search", "")), dict(values.get("drawn", {}))
    except (KeyError, TypeError, AttributeError, ValidationError) as error:
        if isinstance(values, dict) and values.get("search"):
            raise ConfigError(
                [f"{path}: damaged, and was written by a search; remove it: the search proposes again"]
            ) from error
        verb = "hpcbal submit-job" if listed is JOBS else "hpcbal add"
        raise ConfigError(
            [
                f"{path}: damaged, allowed: a file that '{verb}' has written; remove it and "
                f"submit the {listed.one} again"
            ]
        ) from error
    return Submission(items, roots, rates, search, drawn)


def with_proposed(
    run: EnsembleConfig, search: OpenSearchConfig, samples: Mapping[int, Mapping[str, float | int]]
) -> EnsembleConfig:
    """The configuration of a run with DNNs of a search, written out and checked like those of a sweep.

    Emulated ones have the rates of the first DNN of the search.

    Args:
        samples: values by key, of a choice the index, by number of the sample.

    Raises:
        ConfigError: if the values do not make DNNs that can join.
    """
    sweeps = []
    for number, values in samples.items():
        choices = {key: search.search.space[key].choice for key in values}
        axes = {k: [v if (own := choices[k]) is None else own[int(v)]] for k, v in values.items()}
        name = search.name_of(number)
        sweeps.append({**search.dnn, "name": name, "zip": axes})
    content: dict[str, Any] = {"defaults": dict(search.defaults), "sweeps": sweeps}
    where = f"sweep {search.name}"
    if run.backend.is_emulated:
        file = parse_yaml(yaml.dump(content, Dumper=Dumper), "", fixed_where=where)
        names = [item.plain()["name"] for item in expand(file, DNNS, run.seed).items]
        own_rates = run.backend.rates.get(next(iter(search.drawn), ""), {})
        content["backend"] = {"rates": {name: dict(own_rates) for name in names}}
    return join(parse_yaml(yaml.dump(content, Dumper=Dumper), "", fixed_where=where), run, where)


def free_numbers(search: OpenSearchConfig, names: Iterable[str]) -> Iterator[int]:
    """Yield the numbers of the next samples of a search, without those whose names are taken.

    Args:
        names: of all DNNs that the run has.
    """
    taken = {name.casefold() for name in names}
    numbers = itertools.count(len(search.drawn))
    return (number for number in numbers if search.name_of(number).casefold() not in taken)


def with_expected(run: EnsembleConfig) -> tuple[EnsembleConfig, list[str]]:
    """The configuration with stand-ins for DNNs that searches are still to propose, and sentences about them.

    For predictions: what these DNNs cost is not known yet, so they are like the first DNN of their search.
    """
    dnns, rates, notes = list(run.dnns), dict(run.backend.rates), []
    for search in run.searches:
        first = next((dnn for dnn in run.dnns if dnn.name in search.drawn), None)
        if first is None or not search.num_open:
            continue
        numbers = free_numbers(search, [dnn.name for dnn in dnns])
        for number in itertools.islice(numbers, search.num_open):
            name = search.name_of(number)
            dnns.append(first.model_copy(update={"name": name}))
            rates |= {name: rates[first.name]} if first.name in rates else {}
        notes.append(
            f"sweep {search.name}: {search.num_open} of {search.search.samples} DNNs are proposed while the "
            f"run goes on; predicted as if they were like {first.name}, and there from the start"
        )
    backend = run.backend.model_copy(update={"rates": rates})
    return run.model_copy(update={"dnns": tuple(dnns), "backend": backend, "searches": ()}), notes


def joining_problems(run: EnsembleConfig, joined: EnsembleConfig) -> list[str]:
    """Why DNNs that are valid beside those of a run cannot join it: one sentence for each problem.

    Args:
        run: the run, with all DNNs that it has so far.
        joined: the same with those that are to join it.
    """
    problems = []
    if joined.num_folds != run.num_folds:
        problems.append(
            f"k_fold: got {joined.num_folds}, allowed: {run.num_folds or 'none'}, as the run's stream of "
            "samples was cut when it began; use a run of its own"
        )
    if run.schedule.profiling.rates is not None and run.schedule.paradigm not in WITHOUT_ROUNDS:
        problems.append(
            "schedule.profiling.rates: the run takes rates from a file, which lacks those of DNNs that join; "
            "stop the run, add the DNNs to both files, and start it again"
        )
    if run.data.lookahead == 1:
        return problems
    most = max(dnn.batch_size for dnn in run.dnns)
    return problems + [
        f"dnns.{dnn.name}.batch_size: got {dnn.batch_size}, allowed with data.lookahead: at most {most}, the "
        "largest batch so far, by which the order of samples is cut"
        for dnn in joined.dnns[len(run.dnns) :]
        if dnn.batch_size > most
    ]
