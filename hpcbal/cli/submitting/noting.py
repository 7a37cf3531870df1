"""Note a submission in the output directories before its batch system is asked, so that no job is unknown.

The note is also the lock between two submissions: the first one in the file of a directory goes on.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import replace
from pathlib import Path
from typing import TypeAlias

from hpcbal.cluster.systems import SYSTEMS
from hpcbal.errors import InputError, OutputError
from hpcbal.telemetry.files.atomic_file import output_error, remove_quietly
from hpcbal.telemetry.files.batch_jobs import BatchRecord, append_batch_job, note_over, read_batch_jobs

Intent: TypeAlias = tuple[Path, BatchRecord]
"""The output directory of a run, and its job, which is about to be submitted and has no number yet."""


def keys_of(output: Path) -> frozenset[str]:
    """Return the keys of the jobs that an output directory knows."""
    return frozenset(record.key for record in read_batch_jobs(output))


def note_intents(intents: Sequence[Intent], seen: Mapping[Path, Set[str]]) -> None:
    """Note jobs before they are submitted.

    Args:
        intents: the jobs.
        seen: by output directory, keys of the jobs that it knew when it was looked at.

    Raises:
        InputError: if another submission was noted before, and after the directory was looked at.
        OutputError: if nothing can be written.
    """
    noted: list[Intent] = []
    try:
        for output, record in intents:
            append_batch_job(output, record)
            noted.append((output, record))
            keys = [each.key for each in read_batch_jobs(output)]
            if record.key not in keys or set(keys[: keys.index(record.key)]) - seen[output]:
                raise InputError(
                    f"{output}: another job was submitted for it just now; see 'hpcbal status', and submit "
                    "again"
                )
    except BaseException:
        withdraw(noted)
        raise


def withdraw(intents: Sequence[Intent]) -> None:
    """Forget jobs that were not submitted; where that cannot be noted, their numbers stay unknown."""
    for output, record in intents:
        with contextlib.suppress(OutputError):
            note_over(output, [record.key])


def numbered(record: BatchRecord, number: str) -> BatchRecord:
    """Return a job that was noted without a number with it, and with its log."""
    return replace(record, id=number, log=SYSTEMS[record.system].log_of(record.log, number))


def note_started(output: Path, mark: str, number: str) -> None:
    """Note the number of a job that has started, if it is not known.

    Args:
        output: output directory of its run.
        mark: its file for `hpcbal cancel`.
        number: its number.

    Raises:
        OutputError: if it cannot be written.
    """
    for record in read_batch_jobs(output):
        if not record.id and record.cancel == mark:
            append_batch_job(output, numbered(record, number))


@contextlib.contextmanager
def new_script(path: Path, text: str, last: Path) -> Iterator[None]:
    """Write a new script, to submit it in the `with` block; the batch system copies what it accepts.

    Args:
        path: the script, whose name no other submission has.
        text: its content.
        last: the script of the last job, which it replaces at the end; a block that raises removes it.

    Raises:
        OutputError: if it cannot be written.
        InputError: if it is there: another submit has begun at the same time.
    """
    try:
        with open(path, "x", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
    except FileExistsError:
        raise InputError(
            f"{path}: is there: another 'hpcbal submit' has begun just now; submit again"
        ) from None
    except OSError as error:
        remove_quietly(path)
        raise output_error(path, error) from error
    try:
        yield
    except BaseException:
        remove_quietly(path)
        raise
    with contextlib.suppress(OSError):  # it is for people only now
        os.replace(path, last)
