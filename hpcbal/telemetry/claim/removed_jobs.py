"""Configs of jobs that were removed from the file of a run, so that a job that is back resumes as it was."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from hpcbal.errors import OutputError
from hpcbal.telemetry.files.atomic_file import write_atomic
from hpcbal.telemetry.files.own_files import read_file
from hpcbal.telemetry.files.run_directory import RunDirectory


def read_removed(run: RunDirectory) -> Mapping[str, Any]:
    """The configs of all jobs that earlier starts have removed, by name; those that came back are included.

    Raises:
        OutputError: if the file is damaged.
    """
    import yaml

    path = run.removed_jobs
    try:
        found = yaml.safe_load(read_file(path).decode()) if path.exists() else {}
    except (yaml.YAMLError, UnicodeDecodeError, RecursionError) as error:
        found = error
    if not isinstance(found, Mapping) or not all(isinstance(job, Mapping) for job in found.values()):
        raise OutputError(
            f"{path}: damaged; restore it, or remove it if no removed job comes back under its old name"
        )
    return {str(name): job for name, job in found.items()}


def write_removed(run: RunDirectory, jobs: Mapping[str, Any]) -> None:
    """Replace the file.

    Raises:
        OutputError: if the file cannot be written.
    """
    import yaml

    text = yaml.safe_dump(dict(jobs), sort_keys=False, allow_unicode=True)
    write_atomic(run.removed_jobs, text, durable=True)
