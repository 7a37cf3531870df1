"""Make the batch job of a command line."""

from __future__ import annotations

import argparse
import contextlib
import os
import re
import shlex
import sys
import time
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass, replace
from pathlib import Path

from hpcbal.cli.options import print_warning
from hpcbal.cli.submitting.needs import Needs, needs_of_all, path_word, tasks_of
from hpcbal.cli.submitting.noting import keys_of
from hpcbal.cli.submitting.queue import ANSWER_S, JobInQueue, jobs_in_queue, line_of, unsettled_jobs, within
from hpcbal.cluster.systems import SYSTEMS, BatchJob, SiteHabits, System, detect
from hpcbal.cluster.systems.commands import TIMEOUT_S
from hpcbal.cluster.systems.job import Command, Phase, QueueState
from hpcbal.cluster.systems.script import check_site_options, render, render_compare, word
from hpcbal.config import resolved_yaml
from hpcbal.config.site import SiteConfig, check_launcher, check_venv, load_site
from hpcbal.config.source.meant import did_you_mean
from hpcbal.errors import ClusterError, InputError
from hpcbal.kinds import JOBS, KINDS
from hpcbal.telemetry.claim.directory import refuse_other_run
from hpcbal.telemetry.files.batch_jobs import note_over, read_batch_jobs
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


_PLAIN_PATH = re.compile(r"[\w./+=,@-]+", re.ASCII)
_NOT_IN_NAMES = re.compile(r"[^A-Za-z0-9._-]+")
_MOST_OF_NAME = 60
_COMPARE_S = 600


@dataclass(frozen=True, slots=True)
class Submission:
    """A job that is ready to be submitted.

    Attributes:
        system: where to.
        job: the job.
        text: its script.
        folder: directory for the script.
        needs: why it asks for so much.
        seen: keys of the jobs that the output directories have known when they were looked at.
    """

    system: System
    job: BatchJob
    text: str
    folder: Path
    needs: Needs
    seen: Mapping[Path, Set[str]]

    @property
    def outputs(self) -> list[Path]:
        """Return the output directories."""
        return [Path(each) for each in self.job.outputs]

    @property
    def script(self) -> Path:
        """Return the file that keeps the script of the last job."""
        return RunDirectory(self.folder).batch_script

    @property
    def commands(self) -> list[Command]:
        """Return the commands that submit it."""
        return self.system.submissions(self.job, self.job.script, self.text)

    def comparison(self, array: Sequence[str]) -> tuple[BatchJob, str]:
        """Return the small job that compares the runs of an array when all have ended, and its script.

        Args:
            array: identifiers of the jobs for whose end it waits.

        Raises:
            InputError: if a path cannot be written into a script.
        """
        head, slash, _ = self.job.log.rpartition("/")
        job = BatchJob(
            name=f"{self.job.name}-compare",
            num_nodes=1,
            ranks_per_node=1,
            time_s=_COMPARE_S,
            lead_s=0,
            exclusive=False,
            log=f"{head}{slash}compare.log",
            script=os.path.abspath(self.folder / "compare.sh"),
            compare=self.job.compare,
            after=tuple(array),
            site=self.job.site,
        )
        return job, render_compare(self.system, job, os.getcwd())


def prepare(args: argparse.Namespace) -> Submission:
    """Make the job of a command line.

    Raises:
        InputError: if a configuration, an option, the site file or an output directory is wrong.
    """
    site = load_site()
    system = system_of(site.system if args.system is None else args.system)
    check_launcher(site, system.name)
    if not args.dry_run:
        check_venv(site)
    tasks, folder, is_array = tasks_of(args)
    habits = _habits(site, tuple(args.site_options))
    check_site_options(system, habits.options)
    needs = needs_of_all(args, tasks, site)
    outputs = [task.output for task in tasks]
    # Before the scheduler is asked, which takes its time: what comes later is found by `note_intents`.
    seen = {output: keys_of(output) for output in outputs}
    more = jobs_before(system, outputs, args.after, is_array=is_array, is_dry=args.dry_run)
    for task in tasks:
        if task.config.kind != JOBS.name:  # jobs may have been submitted to it since
            refuse_other_run(task.output, resolved_yaml(task.config), KINDS[task.config.kind].jobs)
    name = _new_name(folder, outputs)
    words = tuple(map(path_word, outputs))
    job = BatchJob(
        name=_NOT_IN_NAMES.sub("-", tasks[0].config.name)[:_MOST_OF_NAME],
        num_nodes=needs.num_nodes,
        ranks_per_node=needs.ranks_per_node,
        time_s=needs.time_s,
        lead_s=needs.lead_s,
        cores_per_rank=needs.cores_per_rank,
        gpus_per_node=needs.gpus_per_node,
        tasks=tuple(task.words for task in tasks),
        outputs=words,
        is_array=is_array,
        max_restarts=args.until_done,
        log=_log(system, folder, is_array=is_array),
        script=os.path.abspath(folder / f"{name}.sh"),
        cancel=f"{name}.cancel",
        exclusive=site.exclusive,
        compare=("compare", *words, "--html", path_word(folder / "compare.html")) if is_array else (),
        after=tuple(dict.fromkeys((*args.after, *more))),
        site=habits,
    )
    return Submission(system, job, render(system, job), folder, needs, seen)


def system_of(name: str) -> System:
    """Return the batch system of that name; auto: the one of this machine.

    Raises:
        InputError: if there is none.
    """
    if name == "auto":
        return detect()
    if name not in SYSTEMS:
        allowed = ", ".join(("auto", *SYSTEMS))
        raise InputError(f"--system: got {name!r}, allowed: {allowed}{did_you_mean(name, SYSTEMS)}")
    return SYSTEMS[name]


def _habits(site: SiteConfig, options: tuple[str, ...]) -> SiteHabits:
    """Return the site's habits, with the environment of this process if the site names none."""
    programs = Path(sys.prefix) / "bin"
    if not (programs / "hpcbal").exists():
        return site.habits("", options)
    if (programs / "activate").exists():
        return site.habits(sys.prefix, options)
    habits = site.habits("", options)  # of conda, for example: a job may not inherit PATH
    if habits.venv or habits.container:
        return habits
    return replace(habits, before=(f"export PATH={word(str(programs))}:$PATH", *habits.before))


def _log(system: System, folder: Path, *, is_array: bool) -> str:
    """Return the log in the output directory, or with its own name if a batch system may misread the path."""
    name = system.log_name(is_array)
    whole = os.path.abspath(folder)
    return f"{whole}/{name}" if _PLAIN_PATH.fullmatch(whole) else name


def _new_name(folder: Path, outputs: Sequence[Path]) -> str:
    """Return a name that no other job has for its script, and for the mark that says it was cancelled."""
    taken = {record.cancel for output in outputs for record in read_batch_jobs(output)}
    number = 1
    while True:
        name = f"batch-{number}"
        mark = f"{name}.cancel"
        is_free = mark not in taken and not any((output / mark).exists() for output in outputs)
        if is_free and not (folder / f"{name}.sh").exists():
            return name
        number += 1
