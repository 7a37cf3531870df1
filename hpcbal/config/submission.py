"""Jobs that are submitted to a run that has begun: what may join it, and the file that keeps it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import yaml
from pydantic import ValidationError

from hpcbal.config.load import resolved_yaml
from hpcbal.config.schema.jobs import JobsConfig, SharedJobConfig
from hpcbal.config.source.yaml_source import Dumper, read_yaml
from hpcbal.errors import ConfigError

OWN_KEYS = ("kind", "name", "jobs", "sweeps", "defaults")
"""The keys of a file of jobs to submit; all other keys belong to the run."""


@dataclass(frozen=True, slots=True)
class Submission:
    """One file of submitted jobs.

    Attributes:
        jobs: the jobs, in the order of the file.
        import_roots: directories with their modules, which are searched after those of the run.
    """

    jobs: tuple[SharedJobConfig, ...]
    import_roots: tuple[str, ...] = ()


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
            "to runs with groups: null, or with paradigm harmony, harmony-lookahead or isolated"
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


def submission_yaml(config: JobsConfig, import_roots: Sequence[str]) -> str:
    """The jobs of a configuration as `read_submission` reads them.

    Args:
        config: what was loaded from the user's file of jobs.
        import_roots: directories with their modules.
    """
    values = {"import_roots": [*import_roots], "jobs": yaml.safe_load(resolved_yaml(config))["jobs"]}
    text: str = yaml.dump(values, Dumper=Dumper, sort_keys=False, allow_unicode=True, width=100)
    return text


def read_submission(path: Path) -> Submission:
    """Read a file that holds what `submission_yaml` returned.

    Raises:
        ConfigError: if it is damaged, or was written by hand.
    """
    values = read_yaml(path).plain()
    try:
        jobs = tuple(SharedJobConfig.model_validate(job) for job in values["jobs"])
        roots = tuple(str(root) for root in values["import_roots"])
    except (KeyError, TypeError, ValidationError) as error:
        raise ConfigError(
            [
                f"{path}: damaged, allowed: a file that 'hpcbal submit-job' has written; remove it and "
                "submit the job again"
            ]
        ) from error
    return Submission(jobs, roots)
