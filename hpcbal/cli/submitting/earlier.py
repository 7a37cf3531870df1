"""Earlier batch jobs of the same output directories: whether a new one may come, and for which it waits."""

from __future__ import annotations

import contextlib
import shlex
import time
from collections.abc import Sequence, Set
from pathlib import Path

from hpcbal.cli.options import print_warning
from hpcbal.cli.submitting.queue import ANSWER_S, JobInQueue, jobs_in_queue, line_of, unsettled_jobs, within
from hpcbal.cluster.systems import System
from hpcbal.cluster.systems.commands import TIMEOUT_S
from hpcbal.cluster.systems.job import Phase, QueueState
from hpcbal.errors import ClusterError, InputError
from hpcbal.telemetry.files.batch_jobs import note_over
from hpcbal.telemetry.files.run_directory import RunDirectory


def jobs_before(
    system: System, outputs: Sequence[Path], after: Sequence[str], *, is_array: bool, is_dry: bool
) -> list[str]:
    """Refuse output directories that have a batch job which waits or runs, and note those that have ended.

    Args:
        system: where the new job is submitted.
        outputs: the directories; all their jobs are asked for together.
        after: jobs for whose end the new one waits, as the user names them.
        is_array: whether the new job is an array.
        is_dry: only warn, and note nothing.

    Returns:
        Further jobs for whose end the new job has to wait.

    Raises:
        InputError: if there is one.
    """
    noted = [(output, record) for output in outputs for record in unsettled_jobs(output)]
    found: dict[Path, list[JobInQueue]] = {}
    asked = jobs_in_queue([record for _, record in noted], within(TIMEOUT_S))
    for (output, _), job in zip(noted, asked, strict=True):
        found.setdefault(output, []).append(job)
    _warn_of_unknown(system, [job for job in after if job not in {record.id for _, record in noted}])
    tasks = range(1, len(outputs) + 1)
    waited_for = {each for job in after for each in (job, *(system.task(job, task) for task in tasks))}
    more: list[str] = []
    for output, jobs in found.items():
        problem, others = _second_job(output, jobs, waited_for, is_array=is_array)
        if problem and not is_dry:
            raise InputError(problem)
        if problem:
            print_warning(problem)
        more += others
    for output, jobs in () if is_dry else found.items():
        over = [job.record.id for job in jobs if job.phase is Phase.ENDED and not job.record.is_over]
        if over:
            note_over(output, over)
    return more


def _warn_of_unknown(system: System, after: Sequence[str]) -> None:
    """Warn of jobs for whose end a new one is to wait, but that the batch system does not know."""
    states: dict[str, QueueState] = {}
    with contextlib.suppress(ClusterError):  # the submission will say why
        states = system.ask(after, within(ANSWER_S)) if after else {}
    for job, state in states.items():
        if state.phase is Phase.GONE:
            print_warning(
                f"--after: {system.title} does not know job {job}, or no longer; where it takes such a "
                "number, the new job does not wait"
            )


def _second_job(
    output: Path, jobs: Sequence[JobInQueue], after: Set[str], *, is_array: bool
) -> tuple[str, list[str]]:
    """Return why a directory may have no further batch job, because one of it waits or runs.

    Args:
        output: the directory.
        jobs: its jobs.
        after: jobs whose end is waited for. One of them is allowed, unless its script may submit itself
            again: the scheduler does not know of that.
        is_array: whether the new job is an array, whose tasks cannot wait for different jobs.

    Returns:
        The reason, empty if there is none; and further jobs of the directory for whose end the new job has to
        wait: the one that was named may be removed from the queue before they have ended.
    """
    cancel = f"'hpcbal cancel {shlex.quote(str(output))}'"
    for job in jobs:
        if not job.record.id and not job.record.is_over:
            return (
                f"{output}: {line_of(job, time.time())}; wait for it, or let it end when it starts, with "
                f"{cancel}, and submit again",
                [],
            )
    live = [job for job in jobs if job.record.id and job.may_be_live and not job.record.is_over]
    returning = [job for job in live if job.watches and job.record.max_restarts > 0]
    others = [job for job in live if job.record.id not in after]
    if not returning and (not others or (len(others) < len(live) and not is_array)):
        return "", [job.record.id for job in others]
    job = (returning or others)[-1]
    if job.phase is Phase.UNKNOWN:
        return (
            f"{output}: whether its job {job.record.id} still runs is not known: {job.state.problem}; submit "
            "again when that is known, choose another directory with --output, or if the job has ended for "
            f"sure, remove {RunDirectory(output).batch_jobs}",
            [],
        )
    behind = (
        "array behind its jobs with --after" if is_array else f"job behind it with --after {job.record.id}"
    )
    before = "" if returning else f"start the new {behind}, "
    return (
        f"{output}: its job {job.record.id} is {job.phase.value}; {before}wait for its end, cancel it with "
        f"{cancel}, or choose another directory with --output",
        [],
    )
