"""Jobs that are submitted to a run that has begun: files in its directory, which all starts read.

The files are the record: a job is submitted once its file is there, whatever is killed afterwards.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Collection, Sequence
from pathlib import Path

from hpcbal.config import JobsConfig, SharedJobConfig
from hpcbal.config.submission import read_submission, submission_yaml
from hpcbal.errors import ConfigError, InputError
from hpcbal.telemetry import RunDirectory
from hpcbal.telemetry.files.atomic_file import output_error, remove_quietly, sync_directory, write_atomic


def write_submission(run: RunDirectory, config: JobsConfig, import_roots: Sequence[str]) -> Path:
    """Submit jobs: after this call they are on the disk. Returns the file.

    Args:
        run: the run that they join.
        config: what was loaded from the user's file of jobs.
        import_roots: directories with their modules.

    Raises:
        InputError: if a job of the first one's name has been submitted in the meantime.
        OutputError: if the file cannot be written.
    """
    path = run.submissions / f"{config.jobs[0].name}.yaml"
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    text = submission_yaml(config, import_roots)
    try:
        run.submissions.mkdir(exist_ok=True)
        write_atomic(draft, text, durable=True)
        os.link(draft, path)  # unlike a rename, it fails if the file is there
        sync_directory(run.submissions)
        sync_directory(run.root)
    except FileExistsError:
        raise InputError(f"{path}: is there already; submit the job under a different name") from None
    except OSError as error:
        raise output_error(path, error) from error
    finally:
        remove_quietly(draft)
    return path


def submission_files(run: RunDirectory) -> list[Path]:
    """The files of submitted jobs, by name; none if nothing was submitted.

    Raises:
        OutputError: if the directory cannot be read.
    """
    try:
        return sorted(path for path in run.submissions.iterdir() if path.suffix == ".yaml")
    except FileNotFoundError:
        return []
    except OSError as error:
        raise output_error(run.submissions, error, "read") from error


def with_submitted(config: JobsConfig, run: RunDirectory) -> JobsConfig:
    """The configuration with all jobs that were submitted; one that its file lists is as in that file.

    Their modules become importable.

    Raises:
        ConfigError: if a submission is damaged.
        OutputError: if the submissions cannot be read.
    """
    names = {job.name for job in config.jobs}
    more: list[SharedJobConfig] = []
    for path in submission_files(run):
        submission = read_submission(path)
        append_import_roots(submission.import_roots)
        new = [job for job in submission.jobs if job.name not in names]
        names |= {job.name for job in new}
        more += new
    return config.model_copy(update={"jobs": (*config.jobs, *more)}) if more else config


def submitted_names(run: RunDirectory) -> frozenset[str]:
    """Names of all jobs that were submitted.

    Raises:
        ConfigError: if a submission is damaged.
        OutputError: if the submissions cannot be read.
    """
    return frozenset(job.name for path in submission_files(run) for job in read_submission(path).jobs)


class SubmissionWatch:
    """Finds submissions that come while a run is under way.

    Args:
        run: the run.
        known: names of its jobs; a submission never replaces one of them.
    """

    def __init__(self, run: RunDirectory, known: Collection[str]) -> None:
        self._run = run
        self._names = set(known)
        self._read: set[Path] = set()

    def look(self) -> tuple[list[SharedJobConfig], tuple[str, ...], list[str]]:
        """(new jobs, directories with modules of all jobs in new files, problems); each file is read once.

        The first look reads the files of earlier starts too.

        Raises:
            OutputError: if the submissions cannot be read.
        """
        jobs: list[SharedJobConfig] = []
        roots: dict[str, None] = {}
        problems: list[str] = []
        for path in submission_files(self._run):
            if path in self._read:
                continue
            self._read.add(path)
            try:
                submission = read_submission(path)
            except ConfigError as error:
                problems.append(str(error))
                continue
            new = [job for job in submission.jobs if job.name not in self._names]
            self._names |= {job.name for job in new}
            jobs += new
            roots |= dict.fromkeys(submission.import_roots)
        return jobs, tuple(roots), problems


def append_import_roots(roots: Sequence[str]) -> None:
    """Make modules of submitted jobs importable; the run's own modules come first."""
    sys.path += [root for root in roots if root not in sys.path]
