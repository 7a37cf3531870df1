"""The batch jobs of a run: lines in a file of its output directory."""

from __future__ import annotations

import contextlib
import dataclasses
import fcntl
import math
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hpcbal.telemetry.files.atomic_file import make_own_directory, output_error, own_file, to_jsonable
from hpcbal.telemetry.files.json_lines import encode_line, open_to_append, read_json_lines, write_all
from hpcbal.telemetry.files.run_directory import RunDirectory

FORMAT = 1


@dataclass(frozen=True, slots=True)
class BatchRecord:
    """One batch job that was submitted for a run.

    Attributes:
        system: name of its batch system, see `hpcbal.cluster.systems.SYSTEMS`.
        id: identifier, as the system's commands take it; of a task of an array `12_3`. Empty: the job was
            noted before its system was asked, and its number has not been noted since.
        submitted_s: when, in seconds of the Unix epoch.
        directory: where it was submitted, absolute; relative paths start there.
        script: its script, absolute.
        log: the file with what it prints, absolute.
        num_nodes: number of nodes.
        ranks_per_node: number of ranks on each node.
        time_s: time limit in seconds.
        max_restarts: how often it may come back.
        words: the words of its command behind `hpcbal`.
        why: sentences that say why it asks for so much.
        continues: the job before it whose work it continues; empty for the first one.
        cancel: file of the output directory: while it exists, this job does not come back. Each submission
            has its own, which `hpcbal cancel` makes.
        name: its name in the queue.
        is_over: whether it is known to have ended.
        cluster: name of the cluster that took it; empty: not known.
    """

    system: str
    id: str
    submitted_s: float
    directory: str
    script: str
    log: str
    num_nodes: int
    ranks_per_node: int
    time_s: float
    max_restarts: int = 0
    words: tuple[str, ...] = ()
    why: tuple[str, ...] = ()
    continues: str = ""
    cancel: str = "batch.cancel"
    name: str = ""
    is_over: bool = False
    cluster: str = ""

    @property
    def key(self) -> str:
        """Return what names the job among those of its directory."""
        return self.id or f"at {self.submitted_s!r}"


def append_batch_job(directory: Path, record: BatchRecord) -> None:
    """Add a job to those that the output directory knows, which is made if it is not there.

    The line reaches the disk as a whole, before this returns.

    Raises:
        OutputError: if it cannot be written.
    """
    _append(directory, to_jsonable(record))


def note_over(directory: Path, jobs: Sequence[str]) -> None:
    """Note that jobs have ended, so that nobody needs to ask for them again.

    Args:
        directory: output directory of their run.
        jobs: their keys. One without a number has never been one, and is forgotten.

    Raises:
        OutputError: if it cannot be written.
    """
    _append(directory, {"over": list(jobs)})


def _append(directory: Path, values: Mapping[str, Any]) -> None:
    path = RunDirectory(directory).batch_jobs
    try:
        make_own_directory(directory)
        with open(path, "ab", opener=own_file) as turn:  # a script and a command may write at once
            with contextlib.suppress(OSError):  # a file system may have no locks
                fcntl.flock(turn, fcntl.LOCK_EX)
            with open_to_append(path) as file:
                write_all(file, encode_line({"format": FORMAT, **values}))
                os.fsync(file.fileno())
    except OSError as error:
        raise output_error(path, error) from error


def read_batch_jobs(directory: Path) -> list[BatchRecord]:
    """Return the jobs that an output directory knows, the last one at the end; none if it has no such file.

    A job that its script has submitted has only its identifier and that of the job before; all else is as
    in that one. A line that is damaged, or of another version, is no job.

    Raises:
        OutputError: if the file is there and cannot be read.
    """
    path = RunDirectory(directory).batch_jobs
    try:
        lines = read_json_lines(path)
    except OSError as error:
        raise output_error(path, error, "read") from error
    found: dict[str, BatchRecord] = {}
    for line in lines:
        for ended in _named(line.get("over"), found):
            if ended.id:
                found[ended.key] = dataclasses.replace(ended, is_over=True)
            else:
                del found[ended.key]
        before = found.get(str(line.get("continues") or ""))
        known = {} if before is None else {**dataclasses.asdict(before), "is_over": False}
        record = _record({**known, **line})
        if record is not None:
            found.pop(record.key, None)  # numbers recur: the last job is at the end
            found.pop(dataclasses.replace(record, id="").key, None)  # its number is known now
            found[record.key] = record
    return list(found.values())


def _named(keys: object, found: Mapping[str, BatchRecord]) -> list[BatchRecord]:
    """Return the jobs that a list in a line names, of those that are known."""
    return [found[str(key)] for key in keys if str(key) in found] if isinstance(keys, list) else []


def _record(values: dict[str, Any]) -> BatchRecord | None:
    """Return a record; None if the line is of another format, or a field is missing or of a wrong type."""
    if values.get("format", FORMAT) != FORMAT:
        return None
    given: dict[str, Any] = {}
    for field in dataclasses.fields(BatchRecord):
        if field.name in values:
            value = values[field.name]
            given[field.name] = tuple(value) if isinstance(value, list) else value
            if not _IS_OF_TYPE[str(field.type)](given[field.name]):
                return None
    try:
        return BatchRecord(**given)
    except TypeError:
        return None


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


_IS_OF_TYPE: Mapping[str, Callable[[Any], bool]] = {
    "str": lambda value: isinstance(value, str),
    "bool": lambda value: isinstance(value, bool),
    "int": lambda value: isinstance(value, int) and _is_number(value),
    "float": _is_number,
    "tuple[str, ...]": lambda value: isinstance(value, tuple) and all(isinstance(w, str) for w in value),
}
