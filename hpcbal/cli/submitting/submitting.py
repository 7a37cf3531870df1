"""Make the batch job of a command line, submit it, and note it in the output directories."""

from __future__ import annotations

import argparse
import os
import re
import shlex
import sys
import time
from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from hpcbal.cli.options import Answer, print_warning
from hpcbal.cli.submitting.needs import Needs, needs_of_all
from hpcbal.cli.submitting.noting import Intent, keys_of, note_intents, numbered, withdraw, write_script
from hpcbal.cli.submitting.queue import JobInQueue, ask_for, in_question, line_of, own_jobs, within
from hpcbal.cli.submitting.tasks import path_word, tasks_of
from hpcbal.cluster.systems import SYSTEMS, BatchJob, SiteHabits, System, detect
from hpcbal.cluster.systems.commands import TIMEOUT_S, Answered, HeldSignals, submit
from hpcbal.cluster.systems.job import Command, Phase
from hpcbal.cluster.systems.script import check_site_options, render, render_compare, word, words
from hpcbal.config import resolved_yaml
from hpcbal.config.site import SiteConfig, check_launcher, load_site
from hpcbal.config.source.meant import did_you_mean
from hpcbal.errors import ClusterError, HpcbalError, InputError, OutputError
from hpcbal.kinds import JOBS, KINDS
from hpcbal.processes import say
from hpcbal.telemetry.claim.directory import make_output, refuse_other_run
from hpcbal.telemetry.files.atomic_file import (
    make_own_directory,
    to_jsonable,
    write_atomic,
)
from hpcbal.telemetry.files.batch_jobs import BatchRecord, append_batch_job, note_over, read_batch_jobs
from hpcbal.telemetry.files.json_lines import duration_text
from hpcbal.telemetry.files.run_directory import RunDirectory
from hpcbal.telemetry.views.table import count_text

_PLAIN_PATH = re.compile(r"[\w./+=,@-]+", re.ASCII)
_NOT_IN_NAMES = re.compile(r"[^A-Za-z0-9._-]+")
_MOST_OF_NAME = 60
_COMPARE_S = 600
_FORGOTTEN_S = 14 * 86400.0
"""A job that its scheduler has not known for so long has ended; before, another cluster may know it."""


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
    def commands(self) -> list[Command]:
        """Return the commands that submit it."""
        return self.system.submissions(self.job, self.job.script, self.text)


def answer(args: argparse.Namespace) -> Answer:
    """Submit the runs of a command line, or with `--dry-run` only say what would be done."""
    made = submission_of(args)
    return _shown(made) if args.dry_run else _submitted(made)


def submission_of(args: argparse.Namespace) -> Submission:
    """Make the job of a command line.

    Raises:
        InputError: if a configuration, an option, the site file or an output directory is wrong.
    """
    site = load_site()
    system = system_of(site.system if args.system is None else args.system)
    check_launcher(site, system.name)
    tasks, folder, is_array = tasks_of(args)
    habits = _habits(site, tuple(args.site_options))
    check_site_options(system, habits.options)
    needs = needs_of_all(args, tasks, site)
    after = {each for job in args.after for each in (job, *_task_ids(system, job, len(tasks)))}
    # Before the scheduler is asked, which takes its time: what comes later is found by `note_intents`.
    seen = {task.output: keys_of(task.output) for task in tasks}
    noted = _jobs_noted([task.output for task in tasks])
    more = [
        job
        for output, jobs in noted.items()
        for job in _refuse_second(output, jobs, after, is_array=is_array, is_dry=args.dry_run)
    ]
    if not args.dry_run:
        _note_ended(noted)
    for task in tasks:
        if task.config.kind != JOBS.name:  # jobs may have been submitted to it since
            refuse_other_run(task.output, resolved_yaml(task.config), KINDS[task.config.kind].jobs)
    script = _script(folder, [task.output for task in tasks])
    job = BatchJob(
        name=_NOT_IN_NAMES.sub("-", tasks[0].config.name)[:_MOST_OF_NAME],
        num_nodes=needs.num_nodes,
        ranks_per_node=needs.ranks_per_node,
        time_s=needs.time_s,
        lead_s=needs.lead_s,
        cores_per_rank=needs.cores_per_rank,
        gpus_per_node=needs.gpus_per_node,
        tasks=tuple(task.words for task in tasks),
        outputs=tuple(path_word(task.output) for task in tasks),
        is_array=is_array,
        max_restarts=args.until_done,
        log=_log(system, folder, is_array=is_array),
        script=os.path.abspath(script),
        cancel=f"{script.stem}.cancel",
        exclusive=site.exclusive,
        after=tuple(dict.fromkeys((*args.after, *more))),
        site=habits,
    )
    if is_array:
        job = replace(job, compare=_comparison(folder, job.outputs))
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


def _script(folder: Path, outputs: Sequence[Path]) -> Path:
    """Return a new file for a script, whose name no job of an earlier submission uses."""
    taken = {record.cancel for output in outputs for record in read_batch_jobs(output)}
    first = RunDirectory(folder).batch_script
    names = (first, *(first.with_stem(f"{first.stem}-{number}") for number in range(2, 10_000)))
    for path in names:
        mark = f"{path.stem}.cancel"
        if not path.exists() and mark not in taken and not any((each / mark).exists() for each in outputs):
            return path
    raise InputError(f"{folder}: holds {len(names)} scripts of jobs, allowed: fewer; remove old ones")


def _comparison(folder: Path, outputs: Sequence[str]) -> tuple[str, ...]:
    return ("compare", *outputs, "--html", path_word(folder / "compare.html"))


def _task_ids(system: System, array: str, num_tasks: int) -> list[str]:
    return [system.task(array, number) for number in range(1, num_tasks + 1)]


def _jobs_noted(outputs: Sequence[Path]) -> dict[Path, list[JobInQueue]]:
    """Return the batch jobs of each output directory that may not have ended; all are asked for together."""
    noted = [(output, record) for output in outputs for record in in_question(own_jobs(output))]
    asked = ask_for([record for _, record in noted], within(TIMEOUT_S))
    found: dict[Path, list[JobInQueue]] = {}
    for (output, _), job in zip(noted, asked, strict=True):
        found.setdefault(output, []).append(job)
    unknown = [
        (output, job)
        for output, jobs in found.items()
        for job in jobs
        if job.phase is Phase.UNKNOWN and job.record.id
    ]
    if unknown:
        output, job = unknown[0]
        more = f", and those of {len(unknown) - 1} others" if unknown[1:] else ""
        print_warning(
            f"{output}: whether its job {job.record.id} still runs is not known{more}: {job.state.problem}"
        )
    return found


def _note_ended(noted: Mapping[Path, Sequence[JobInQueue]]) -> None:
    """Note the jobs that have ended, or that a scheduler has not known for days, in their directories."""
    long_ago_s = time.time() - _FORGOTTEN_S
    for output, jobs in noted.items():
        over = [
            job.record.id
            for job in jobs
            if not job.record.is_over
            and (
                job.phase is Phase.ENDED or (job.phase is Phase.GONE and job.record.submitted_s < long_ago_s)
            )
        ]
        if over:
            note_over(output, over)


def _refuse_second(
    output: Path, jobs: Sequence[JobInQueue], after: Set[str], *, is_array: bool, is_dry: bool
) -> list[str]:
    """Refuse an output directory that has a batch job which waits or runs.

    Args:
        output: the directory.
        jobs: its jobs.
        after: jobs whose end is waited for. One of them is allowed, unless its script may submit itself
            again: the scheduler does not know of that.
        is_array: whether the new job is an array, whose tasks cannot wait for different jobs.
        is_dry: only warn.

    Returns:
        Further jobs of the directory for whose end the new job has to wait: the one that was named may be
        removed from the queue before they have ended.

    Raises:
        InputError: if there is one.
    """
    for job in jobs:
        if not job.record.id and not job.record.is_over:
            _refuse(
                f"{output}: {line_of(job, time.time())}; wait for it, or let it end when it starts, with "
                f"'hpcbal cancel {shlex.quote(str(output))}', and submit again",
                is_dry=is_dry,
            )
            return []
    live = [job for job in jobs if job.is_live]
    returning = [job for job in live if SYSTEMS[job.record.system].watches and job.record.max_restarts > 0]
    others = [job for job in live if job.record.id not in after]
    if not returning and (not others or (len(others) < len(live) and not is_array)):
        return [job.record.id for job in others]
    job = (returning or others)[-1]
    before = "" if returning else f"start the new job behind it with --after {job.record.id}, "
    problem = (
        f"{output}: its job {job.record.id} is {job.phase.value}; {before}wait for its end, cancel it with "
        f"'hpcbal cancel {shlex.quote(str(output))}', or choose another directory with --output"
    )
    _refuse(problem, is_dry=is_dry)
    return []


def _refuse(problem: str, *, is_dry: bool) -> None:
    if not is_dry:
        raise InputError(problem)
    print_warning(problem)


def _shown(made: Submission) -> Answer:
    commands = [
        " ".join([*(f"{name}={value}" for name, value in each.environ.items()), shlex.join(each.words)])
        + ("" if each.stdin is None else f" < {shlex.quote(made.job.script)}")
        for each in made.commands
    ]
    values = {**_facts(made), "script": made.text, "commands": commands}
    remarks = [*_asked(made), *(f"would run: {command}" for command in commands)]
    return Answer(values, lambda: [made.text.rstrip("\n")], remarks)


def _submitted(made: Submission) -> Answer:
    system, job = made.system, made.job
    intents = [_intent(made, output, task) for output, task in zip(made.outputs, job.tasks, strict=True)]
    for intent in intents:
        make_output(intent.output)
    make_own_directory(made.folder)
    write_script(Path(job.script), made.text)
    values: dict[str, Any] = {**_facts(made), "script": job.script}
    lines: list[str] = []
    with HeldSignals() as held:  # a job that is submitted is noted, and its number is printed
        note_intents(intents, made.seen, Path(job.script))
        ids, own = _numbers(made, intents, lambda: held.came)
        more = ", ..." if own[1:] else ""
        lines += [f"submitted {' '.join(ids)} to {system.title}", *_asked(made)]
        lines.append(f"log: {os.path.abspath(system.log_of(job.log, own[0]))}{more}")
        lines.append(f"look: hpcbal status {shlex.quote(job.outputs[0])}{more}")
        values["ids"] = ids
        if job.is_array and not held.came:
            values["compare"] = _submit_comparison(made, ids, lambda: held.came)
            if values["compare"] is not None:
                lines.append(f"then: job {values['compare']} writes {made.folder / 'compare.html'}")
    if held.came:
        for line in lines:
            say(line)
        raise KeyboardInterrupt
    return Answer(values, lambda: lines)


def _numbers(
    made: Submission, intents: Sequence[Intent], is_interrupted: Callable[[], bool]
) -> tuple[list[str], list[str]]:
    """Submit the jobs, and note each at once: the next one may be refused.

    Returns:
        The numbers of the jobs, and of the tasks of an array.

    Raises:
        ClusterError: if a job was refused, or its number is not known.
        OutputError: if a number cannot be noted.
        KeyboardInterrupt: if the user has gone before anything was submitted.
    """
    system, commands = made.system, made.commands
    each = len(intents) // len(commands)  # tasks of a command
    ids: list[str] = []
    own: list[str] = []
    for command in commands:
        if is_interrupted():
            withdraw(intents[len(own) :], Path(made.job.script), is_used=bool(ids))
            if not ids:
                raise KeyboardInterrupt
            break
        answered = submit(command, system.number, is_interrupted)
        some = intents[len(own) : len(own) + each]
        if not answered.number:
            rest = intents[len(own) + (each if answered.may_be_queued else 0) :]
            withdraw(rest, Path(made.job.script), is_used=bool(ids) or answered.may_be_queued)
            raise ClusterError(_refusal(made, answered, ids, some[0].output))
        ids.append(answered.number)
        numbers = [system.task(ids[-1], n + 1) for n in range(each)] if made.job.is_array else ids[-1:]
        for intent, number in zip(some, numbers, strict=True):
            try:
                append_batch_job(intent.output, numbered(intent.record, number))
            except OutputError as error:
                raise OutputError(
                    f"job {ids[-1]} is submitted to {system.title}, but not noted: {error}"
                ) from error
            own.append(number)
    return ids, own


def _refusal(made: Submission, answered: Answered, ids: Sequence[str], output: Path) -> str:
    text = answered.problem
    if answered.may_be_queued:
        text += (
            f"; the job may be in the queue: look for {made.job.name!r} with '{made.system.queue}' before "
            f"you submit again; 'hpcbal cancel {shlex.quote(str(output))}' makes it end when it starts"
        )
    if ids:
        text += f"; {len(ids)} of {len(made.commands)} runs are submitted: {' '.join(ids)}"
    return text


def _submit_comparison(
    made: Submission, ids: Sequence[str], is_interrupted: Callable[[], bool]
) -> str | None:
    """Submit the small job that compares the runs of an array when all of them have ended.

    Returns:
        Its number; None, with a warning, if it was refused: the runs are submitted already.
    """
    folder = made.folder
    head, slash, _ = made.job.log.rpartition("/")
    job = BatchJob(
        name=f"{made.job.name}-compare",
        num_nodes=1,
        ranks_per_node=1,
        time_s=_COMPARE_S,
        lead_s=0,
        exclusive=False,
        log=f"{head}{slash}compare.log",
        script=os.path.abspath(folder / "compare.sh"),
        compare=made.job.compare,
        after=tuple(ids),
        site=made.job.site,
    )
    try:
        text = render_compare(made.system, job, os.getcwd())
        write_atomic(job.script, text, durable=True)
        (command,) = made.system.submissions(job, job.script, text)
        answered = submit(command, made.system.number, is_interrupted)
    except HpcbalError as error:
        answered = Answered(problem=str(error))
    if answered.number:
        return answered.number
    print_warning(
        f"the runs are submitted, but not their comparison; later: hpcbal {words(job.compare)}: "
        f"{answered.problem}"
    )
    return None


def _intent(made: Submission, output: Path, task: tuple[str, ...]) -> Intent:
    return Intent(
        output,
        BatchRecord(
            system=made.system.name,
            id="",
            submitted_s=time.time(),
            directory=os.getcwd(),
            script=made.job.script,
            log=os.path.abspath(made.job.log),
            num_nodes=made.job.num_nodes,
            ranks_per_node=made.job.ranks_per_node,
            time_s=made.job.time_s,
            max_restarts=made.job.max_restarts,
            words=task,
            why=made.needs.why,
            cancel=made.job.cancel,
            name=made.job.name,
        ),
    )


def _facts(made: Submission) -> dict[str, Any]:
    return {"system": made.system.name, "job": to_jsonable(made.job), "why": list(made.needs.why)}


def _asked(made: Submission) -> list[str]:
    """Return what is asked for, and why, in lines."""
    job = made.job
    gpus = f" and {count_text(job.gpus_per_node, 'GPU')}" if job.gpus_per_node else ""
    ranks = count_text(job.ranks_per_node, "rank")
    hours = len(job.tasks) * job.num_nodes * job.time_s / 3600.0
    times = f"{len(job.tasks)} times " if job.is_array else ""
    asked = (
        f"asks {times}for {count_text(job.num_nodes, 'node')} with {ranks}{gpus} each, for "
        f"{duration_text(job.time_s)}: {hours:.3g} node-hours"
    )
    return [asked, *(f"  {reason}" for reason in made.needs.why)]
