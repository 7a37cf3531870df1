"""Requests of users to a run that has begun: jobs and DNNs that join it, and DNNs that stop; as files.

The files are the record: a job or a DNN belongs to the run once its file is there, whatever is killed
afterwards. They are numbered, in the order in which they came.

The files are the record: DNNs are asked to stop once the file with their names is there, whatever is killed
afterwards.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Collection, Sequence
from dataclasses import replace
from pathlib import Path

from hpcbal.config.listed import Listed
from hpcbal.config.submission import C, Submission, listed_of, read_submission, with_items
from hpcbal.errors import ConfigError, OutputError
from hpcbal.telemetry.files.atomic_file import (
    cannot_read,
    output_error,
    read_text,
    remove_quietly,
    sync_directory,
    write_atomic,
)
from hpcbal.telemetry.files.run_directory import RunDirectory


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


_SUFFIX = ".names"


def ask_to_stop(run: RunDirectory, names: Sequence[str]) -> None:
    """Ask to stop DNNs: after this call the request is on the disk, as a whole.

    Raises:
        OutputError: if the file cannot be written.
    """
    folder = run.stop_requests
    try:
        folder.mkdir(exist_ok=True)
        sync_directory(run.root)
    except OSError as error:
        raise output_error(folder, error) from error
    path = folder / f"{time.time_ns()}-{os.getpid()}{_SUFFIX}"
    write_atomic(path, "".join(f"{name}\n" for name in names), durable=True)


class StopRequests:
    """Reads the requests of a run, each of them once.

    Args:
        run: the run.
    """

    def __init__(self, run: RunDirectory) -> None:
        self._folder = run.stop_requests
        self._read: set[Path] = set()

    def take(self) -> list[str]:
        """The DNNs that have been asked to stop since the last call, in the order of the requests.

        Raises:
            OutputError: if a request cannot be read.
        """
        try:
            new = sorted({path for path in self._folder.iterdir() if path.suffix == _SUFFIX} - self._read)
        except FileNotFoundError:
            return []
        except OSError as error:
            raise output_error(self._folder, error, "read") from error
        names: dict[str, None] = {}
        for path in new:
            try:
                names |= dict.fromkeys(read_text(path).splitlines())
            except (OSError, UnicodeDecodeError) as error:
                why = cannot_read(path, error) if isinstance(error, OSError) else f"{path}: damaged"
                raise OutputError(f"{why}; remove it, and ask again") from error
            self._read.add(path)
        return list(names)
