"""Jobs and DNNs that join a run that has begun: files in its directory, which all starts read.

The files are the record: a job or a DNN belongs to the run once its file is there, whatever is killed
afterwards. They are numbered, in the order in which they came.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Collection, Sequence
from dataclasses import replace
from pathlib import Path

from hpcbal.config.listed import Listed
from hpcbal.config.submission import C, Submission, listed_of, read_submission, with_items
from hpcbal.errors import ConfigError
from hpcbal.telemetry import RunDirectory
from hpcbal.telemetry.files.atomic_file import output_error, remove_quietly, sync_directory, write_atomic


def write_submission(run: RunDirectory, text: str, number: int) -> bool:
    """Let jobs or DNNs join a run: after this call they are on the disk.

    Args:
        run: the run that they join.
        text: what `submission_yaml` returned.
        number: of the file: `next_number` when what is in it was checked beside the others.

    Returns: False if another one has taken the number meanwhile, and nothing was written: check again.
    Raises:
        OutputError: if the file cannot be written.
    """
    path = run.submissions / f"{number:04d}.yaml"
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        run.submissions.mkdir(exist_ok=True)
        write_atomic(draft, text, durable=True)
        os.link(draft, path)  # unlike a rename, it fails if the file is there
        sync_directory(run.submissions)
        sync_directory(run.root)
    except FileExistsError:
        return False
    except OSError as error:
        raise output_error(path, error) from error
    finally:
        remove_quietly(draft)
    return True


def next_number(run: RunDirectory) -> int:
    """Return the number of the next file, above the largest: files in between may have been removed."""
    return 1 + max((int(path.stem) for path in submission_files(run) if path.stem.isdecimal()), default=-1)


def submission_files(run: RunDirectory) -> list[Path]:
    """The files of what has joined, by number; none if nothing has.

    Raises:
        OutputError: if the directory cannot be read.
    """
    try:
        return sorted(path for path in run.submissions.iterdir() if path.suffix == ".yaml")
    except (
        FileNotFoundError,
        NotADirectoryError,
    ):  # the claim of the run's directory reports that it is a file
        return []
    except OSError as error:
        raise output_error(run.submissions, error, "read") from error


def with_submitted(config: C, run: RunDirectory) -> C:
    """The configuration with all that has joined; what its file lists is as in that file.

    Their modules become importable.

    Raises:
        ConfigError: if a submission is damaged.
        OutputError: if the submissions cannot be read.
    """
    for path in submission_files(run):
        submission = read_submission(path, listed_of(config))
        append_import_roots(submission.import_roots)
        config = with_items(config, submission)
    return config


def submissions_of(run: RunDirectory, listed: Listed) -> list[Submission]:
    """All that has joined, in the order in which it came; for errors see `submissions_by_file`."""
    return list(submissions_by_file(run, listed).values())


def submissions_by_file(run: RunDirectory, listed: Listed) -> dict[str, Submission]:
    """All that has joined, by its file, relative to the run's directory.

    Raises:
        ConfigError: if a submission is damaged.
        OutputError: if the submissions cannot be read.
    """
    files = submission_files(run)
    return {str(path.relative_to(run.root)): read_submission(path, listed) for path in files}


class SubmissionWatch:
    """Finds submissions that come while a run is under way.

    Args:
        run: the run.
        listed: what joins it.
        known: names of its jobs or DNNs; a submission never replaces one of them.
    """

    def __init__(self, run: RunDirectory, listed: Listed, known: Collection[str]) -> None:
        self._run = run
        self._listed = listed
        self._names = set(known)
        self._read: set[Path] = set()

    def look(self) -> tuple[list[Submission], list[str]]:
        """(new submissions, without what is known, problems); each file is read once.

        The first look reads the files of earlier starts too.

        Raises:
            OutputError: if the submissions cannot be read.
        """
        found: list[Submission] = []
        problems: list[str] = []
        for path in submission_files(self._run):
            if path in self._read:
                continue
            self._read.add(path)
            try:
                submission = read_submission(path, self._listed)
            except ConfigError as error:
                problems.append(str(error))
                continue
            new = tuple(item for item in submission.items if item.name not in self._names)
            self._names |= {item.name for item in new}
            if new:
                found.append(replace(submission, items=new))
        return found, problems


def append_import_roots(roots: Sequence[str]) -> None:
    """Make modules of what has joined importable; the run's own modules come first."""
    sys.path += [root for root in roots if root not in sys.path]
