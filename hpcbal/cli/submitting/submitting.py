"""Submit a batch job, note it in its output directories, and say what was done."""

from __future__ import annotations

import argparse
import contextlib
import os
import shlex
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from hpcbal.cli.options import Answer, print_warning
from hpcbal.cli.submitting.noting import Intent, new_script, note_intents, numbered, withdraw
from hpcbal.cli.submitting.preparing import Submission, prepare
from hpcbal.cli.submitting.queue import ANSWER_S, within
from hpcbal.cluster.systems import System
from hpcbal.cluster.systems.commands import Answered, HeldSignals, submit
from hpcbal.cluster.systems.script import words
from hpcbal.errors import ClusterError, HpcbalError, OutputError
from hpcbal.processes import say
from hpcbal.telemetry.claim.directory import make_output
from hpcbal.telemetry.files.atomic_file import make_own_directory, to_jsonable, write_atomic
from hpcbal.telemetry.files.batch_jobs import BatchRecord, append_batch_job
from hpcbal.telemetry.files.json_lines import duration_text
from hpcbal.telemetry.views.table import count_text


def answer(args: argparse.Namespace) -> Answer:
    """Submit the runs of a command line, or with `--dry-run` only say what would be done."""
    made = prepare(args)
    return _shown(made) if args.dry_run else _submitted(made)


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
    cluster = _cluster(system)
    intents = [
        _intent(made, output, task, cluster) for output, task in zip(made.outputs, job.tasks, strict=True)
    ]
    for output in made.outputs:
        make_output(output)
    make_own_directory(made.folder)
    values: dict[str, Any] = {**_facts(made), "script": os.path.abspath(made.script)}
    lines: list[str] = []
    with HeldSignals() as held:  # a job that is submitted is noted, and its number is printed
        with new_script(Path(job.script), made.text, made.script):
            note_intents(intents, made.seen)
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
            withdraw(intents[len(own) :])
            if not ids:
                raise KeyboardInterrupt
            break
        answered = submit(command, system.number, is_interrupted)
        some = intents[len(own) : len(own) + each]
        if not answered.number:
            withdraw(intents[len(own) + (each if answered.may_be_queued else 0) :])
            raise ClusterError(_refusal(made, answered, ids, some[0][0]))
        ids.append(answered.number)
        numbers = [system.task(ids[-1], n + 1) for n in range(each)] if made.job.is_array else ids[-1:]
        for (output, record), number in zip(some, numbers, strict=True):
            try:
                append_batch_job(output, numbered(record, number))
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
    try:
        job, text = made.comparison(ids)
        write_atomic(job.script, text, durable=True)
        (command,) = made.system.submissions(job, job.script, text)
        answered = submit(command, made.system.number, is_interrupted)
    except HpcbalError as error:
        answered = Answered(problem=str(error))
    if answered.number:
        return answered.number
    print_warning(
        f"the runs are submitted, but not their comparison; later: hpcbal {words(made.job.compare)}: "
        f"{answered.problem}"
    )
    return None


def _cluster(system: System) -> str:
    """Return the name of the cluster that answers; empty if it does not say."""
    with contextlib.suppress(ClusterError):  # the submission may succeed, or says why not
        return system.cluster(within(ANSWER_S))
    return ""


def _intent(made: Submission, output: Path, task: tuple[str, ...], cluster: str) -> Intent:
    return (
        output,
        BatchRecord(
            system=made.system.name,
            id="",
            submitted_s=time.time(),
            directory=os.getcwd(),
            script=os.path.abspath(made.script),
            log=os.path.abspath(made.job.log),
            num_nodes=made.job.num_nodes,
            ranks_per_node=made.job.ranks_per_node,
            time_s=made.job.time_s,
            max_restarts=made.job.max_restarts,
            words=task,
            why=made.needs.why,
            cancel=made.job.cancel,
            name=made.job.name,
            cluster=cluster,
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
