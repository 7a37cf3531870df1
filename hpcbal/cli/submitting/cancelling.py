"""Cancel the batch jobs of runs: ask them to stop with checkpoints, or kill them, and let none come back."""

from __future__ import annotations

import shlex
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import Enum
from functools import partial
from pathlib import Path
from typing import Any

from hpcbal.cli.submitting.queue import (
    JobInQueue,
    jobs_in_queue,
    line_of,
    original_of,
    unsettled_jobs,
    values_of,
)
from hpcbal.cluster.systems import SYSTEMS
from hpcbal.cluster.systems.commands import run_command
from hpcbal.cluster.systems.job import Command, Phase, Run
from hpcbal.errors import ClusterError, HpcbalError, InputError
from hpcbal.telemetry.files.atomic_file import own_file
from hpcbal.telemetry.files.batch_jobs import BatchRecord, read_batch_jobs
from hpcbal.telemetry.files.run_directory import RunDirectory

SECOND_LOOK_S = 2.0
"""A script that has decided to come back needs less than that to be back in the queue."""


ask_patiently: Run = partial(run_command, timeout_s=30.0)


class Act(Enum):
    """The way in which a job is cancelled."""

    NOTHING = "nothing"
    REMOVE = "removed"
    STOP = "asked to stop"
    KILL = "killed"


_DONE = {
    Act.REMOVE: "waited, and was removed from the queue",
    Act.STOP: "was asked to stop: it writes checkpoints, ends, and does not come back",
    Act.KILL: "was killed, and does not come back; the last checkpoints stay",
}


def act_on(phase: Phase, *, at_once: bool) -> Act:
    """Decide how a job is cancelled.

    Args:
        phase: where it is.
        at_once: whether it is to be killed without checkpoints.
    """
    if phase is Phase.PENDING:
        return Act.REMOVE
    if phase in (Phase.RUNNING, Phase.UNKNOWN):
        return Act.KILL if at_once else Act.STOP
    return Act.NOTHING


@dataclass(frozen=True, slots=True)
class Cancelled:
    """A path that was given, and what was done to a job there.

    Attributes:
        directory: the path.
        job: the job as it was when it was looked at last; None: there is none.
        act: what was done.
        problem: why that may have had no effect, or why there is no job; empty if the scheduler took it.
        unmarked: why it could not be noted that the job does not come back; empty if it was.
        is_file: whether the path is a file, such as one between the directories of `runs/*`.
    """

    directory: Path
    job: JobInQueue | None = None
    act: Act = Act.NOTHING
    problem: str = ""
    unmarked: str = ""
    is_file: bool = False

    def line(self, now_s: float) -> str:
        """Describe it for people.

        Args:
            now_s: the time, in seconds of the Unix epoch.
        """
        if self.job is None:
            return self.problem
        if self.job.phase is Phase.UNKNOWN:
            then = "it does not come back once it has stopped"
            then = self.unmarked or (then if self.job.record.id else "it ends when it starts")
            if self.problem:
                then = f"it could not be {self.act.value}: {self.problem}; {then}"
            elif self.act is not Act.NOTHING:
                then = f"it was {self.act.value} if it runs; {then}"
            return f"{self.directory}: {line_of(self.job, now_s)}; {then}"
        if self.problem:
            return f"{self.directory}: {self.job.name} could not be {self.act.value}: {self.problem}"
        if self.act is Act.NOTHING:
            return f"{self.directory}: nothing to cancel: {line_of(self.job, now_s)}"
        if self.comes_back:
            return f"{self.directory}: {self.job.name} was asked to stop, but {self.unmarked}"
        return f"{self.directory}: {self.job.name} {_DONE[self.act]}"

    @property
    def comes_back(self) -> bool:
        """Return whether a job that was asked to stop may not do so, or come back."""
        if self.job is None or self.act is not Act.STOP or not self.unmarked:
            return False
        return SYSTEMS[self.job.record.system].watches or self.job.record.max_restarts > 0

    @property
    def has_failed(self) -> bool:
        """Return whether the job may go on, or there should have been one."""
        is_unknown = self.job is not None and self.job.phase is Phase.UNKNOWN
        return not self.is_file and (bool(self.problem) or self.comes_back or is_unknown)

    def values(self) -> dict[str, Any]:
        """Return it as plain values, for `--json`."""
        unknown = "" if self.job is None else self.job.state.problem
        return {
            "directory": str(self.directory),
            "action": self.act.value,
            "problem": self.problem or unknown or (self.unmarked if self.comes_back else ""),
            "job": None if self.job is None else values_of(self.job),
        }


def cancel(
    directories: Sequence[Path],
    *,
    at_once: bool = False,
    run: Run = ask_patiently,
) -> list[Cancelled]:
    """Cancel the jobs of runs that wait or run; what fails for one does not keep it from the others.

    A job that was about to come back when it was asked to stop is removed by a second look.

    Args:
        directories: output directories of the runs.
        at_once: kill what runs, without checkpoints.
        run: runs a command of a scheduler.
    """
    records: list[tuple[Path, BatchRecord]] = []
    others: list[Cancelled] = []
    for directory in directories:
        try:
            records += [(directory, record) for record in _records(directory)]
        except HpcbalError as error:
            others.append(Cancelled(directory, problem=str(error)))
        except NotADirectoryError:
            problem = f"{directory}: is a file, and has no job"
            others.append(Cancelled(directory, problem=problem, is_file=True))
    asked = jobs_in_queue([record for _, record in records], run)
    unmarked = [  # all, before any is asked to stop
        _mark(directory, job) for (directory, _), job in zip(records, asked, strict=True)
    ]
    found = [
        replace(_cancelled(directory, job, run, at_once=at_once), unmarked=problem)
        for (directory, _), job, problem in zip(records, asked, unmarked, strict=True)
    ]
    if seen := [index for index, each in enumerate(found) if _needs_look(each)]:
        time.sleep(SECOND_LOOK_S)
        looked = jobs_in_queue([records[index][1] for index in seen], run)
        for index, job in zip(seen, looked, strict=True):
            found[index] = _looked_again(found[index], job, run)
    last = {directory: record.key for directory, record in records}
    shown = [
        each
        for each, (directory, record) in zip(found, records, strict=True)
        if each.act is not Act.NOTHING or each.has_failed or record.key == last[directory]
    ]
    return [*shown, *others]


def _mark(directory: Path, job: JobInQueue) -> str:
    """Make the file by which a job knows that it does not come back.

    Returns:
        Why that was not possible; empty if it was, or the job has ended.
    """
    if not job.may_be_live:
        return ""
    path = directory / job.record.cancel
    try:
        with open(path, "ab", opener=own_file):  # empty, because the disk may be full
            return ""
    except OSError as error:
        return (
            f"it may go on or come back, because {path} cannot be made ({error.strerror or error}): make an "
            "empty file of this name, or kill the job with --now"
        )


def _records(directory: Path) -> list[BatchRecord]:
    """Return the jobs of a directory to ask for.

    Raises:
        InputError: if it is not there, or has no batch job.
        OutputError: if the file of the jobs cannot be read.
        NotADirectoryError: if it is a file.
    """
    if directory.is_file():
        raise NotADirectoryError
    RunDirectory(directory).check_exists()
    jobs = unsettled_jobs(directory)
    copied = read_batch_jobs(directory)[-1:] if not jobs else []
    if copied:
        raise InputError(
            f"{directory}: is a copy of {original_of(copied[0], directory)}, whose job {copied[0].id} writes "
            "there; cancel that"
        )
    if not jobs and any(directory.glob(f"*/{RunDirectory(directory).batch_jobs.name}")):
        raise InputError(
            f"{directory}: the directories in it have the batch jobs, such as those of an array: 'hpcbal "
            f"cancel {shlex.quote(str(directory))}/*'"
        )
    if not jobs:
        raise InputError(
            f"{directory}: no batch job of 'hpcbal submit' is known here; stop a run that was started "
            "otherwise with Ctrl-C, or its job with the commands of its batch system"
        )
    return jobs


def _cancelled(directory: Path, job: JobInQueue, run: Run, *, at_once: bool) -> Cancelled:
    act = act_on(job.phase, at_once=at_once) if job.can_be_reached else Act.NOTHING
    if act is Act.NOTHING:
        return Cancelled(directory, job, act)
    system = SYSTEMS[job.record.system]
    if act is not Act.STOP:
        command = system.cancel([job.record.id])
    elif system.signal is not None:
        command = system.signal(job.record.id)
    else:
        return Cancelled(directory, job, act)  # the script itself looks for the mark every few seconds
    return Cancelled(directory, job, act, _problem(command, run))


def _problem(command: Command, run: Run) -> str:
    try:
        done = run(command)
    except ClusterError as error:
        return str(error)
    return f"{command.words[0]} has ended with {done.code}: {done.said}" if done.code else ""


def _needs_look(cancelled: Cancelled) -> bool:
    if cancelled.act is Act.NOTHING or cancelled.job is None:
        return False
    return cancelled.act is Act.STOP or bool(cancelled.problem) or cancelled.job.phase is Phase.UNKNOWN


def _looked_again(before: Cancelled, job: JobInQueue, run: Run) -> Cancelled:
    """Look at a job once more: it may be back in the queue, or have ended before it could be asked."""
    if job.phase is Phase.UNKNOWN:
        return before
    if job.phase is Phase.PENDING:
        return replace(_cancelled(before.directory, job, run, at_once=True), unmarked=before.unmarked)
    if before.problem and not job.is_live:
        return Cancelled(before.directory, job, Act.NOTHING)
    return replace(before, job=job)
