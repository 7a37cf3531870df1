"""Make the batch job of a configuration, submit it, and note it in the output directory."""

from __future__ import annotations

import argparse
import os
import re
import shlex
import sys
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from hpcbal.cli.options import Answer, print_warning
from hpcbal.cli.submitting.needs import Needs, needs_of
from hpcbal.cluster.systems import SYSTEMS, BatchJob, Phase, SiteHabits, System, detect
from hpcbal.cluster.systems.commands import answer_of, run_command
from hpcbal.cluster.systems.script import render
from hpcbal.config import load_config
from hpcbal.config.source.meant import did_you_mean
from hpcbal.errors import ClusterError, InputError
from hpcbal.telemetry.files.atomic_file import to_jsonable, write_atomic
from hpcbal.telemetry.files.batch_jobs import BatchRecord, append_batch_job, read_batch_jobs
from hpcbal.telemetry.files.json_lines import duration_text
from hpcbal.telemetry.files.run_directory import RunDirectory
from hpcbal.telemetry.views.table import count_text

_PLAIN_PATH = re.compile(r"[\w./+=,@-]+", re.ASCII)


@dataclass(frozen=True, slots=True)
class Submission:
    """A job that is ready to be submitted.

    Attributes:
        system: where to.
        job: the job.
        text: its script.
        script: the file for it.
        needs: why it asks for so much.
    """

    system: System
    job: BatchJob
    text: str
    script: Path
    needs: Needs


def answer(args: argparse.Namespace) -> Answer:
    """Submit the run of a command line, or with `--dry-run` only say what would be done."""
    made = submission_of(args)
    if args.dry_run:
        return _shown(made)
    return _submitted(made)


def submission_of(args: argparse.Namespace) -> Submission:
    """Make the job of a command line.

    Raises:
        InputError: if the configuration, an option or the output directory is wrong.
    """
    system = _system(args.system)
    config = load_config(args.config, args.overrides, warn=print_warning, beforehand=True)
    output = args.output or Path(config.output.dir)
    needs = needs_of(args, config)
    site = SiteHabits(venv=_own_environment(), options=tuple(args.site_options))
    words = ("run", str(args.config), *(word for each in args.overrides for word in ("--set", each)))
    job = BatchJob(
        name=config.name,
        num_nodes=needs.num_nodes,
        ranks_per_node=needs.ranks_per_node,
        time_s=needs.time_s,
        cores_per_rank=needs.cores_per_rank,
        gpus_per_node=needs.gpus_per_node,
        tasks=((*words, "--output", str(output)),),
        outputs=(str(output),),
        max_restarts=args.until_done,
        after=tuple(args.after),
        log=_log(system, output, is_array=False),
        site=site,
    )
    _refuse_second(output)
    return Submission(system, job, render(system, job), RunDirectory(output).batch_script, needs)


def _system(name: str) -> System:
    if name == "auto":
        return detect()
    if name not in SYSTEMS:
        allowed = ", ".join(("auto", *SYSTEMS))
        raise InputError(f"--system: got {name!r}, allowed: {allowed}{did_you_mean(name, SYSTEMS)}")
    return SYSTEMS[name]


def _own_environment() -> str:
    """Return the environment of this process if it can be activated; empty otherwise."""
    root = Path(sys.prefix)
    return str(root) if (root / "bin" / "activate").exists() and (root / "bin" / "hpcbal").exists() else ""


def _log(system: System, output: Path, *, is_array: bool) -> str:
    """Return the log in the output directory, or with its own name if a batch system may misread the path."""
    name = system.log_name(is_array)
    folder = Path(os.path.abspath(output))
    return f"{folder}/{name}" if _PLAIN_PATH.fullmatch(str(folder)) else name


def _refuse_second(output: Path) -> None:
    """Refuse an output directory whose last batch job still waits or runs.

    Raises:
        InputError: if there is one.
    """
    jobs = read_batch_jobs(output)
    if not jobs or jobs[-1].system not in SYSTEMS:
        return
    last = jobs[-1]
    try:
        state = SYSTEMS[last.system].ask([last.id], run_command)[last.id]
    except ClusterError as error:
        print_warning(f"{output}: whether its job {last.id} still runs is not known: {error}")
        return
    if state.phase in (Phase.PENDING, Phase.RUNNING):
        raise InputError(
            f"{output}: its job {last.id} is {state.phase.value}; wait for its end, cancel it with "
            f"'hpcbal cancel {output}', or choose another directory with --output"
        )


def _shown(made: Submission) -> Answer:
    commands = [
        shlex.join(command.words)
        for command in made.system.submissions(made.job, str(made.script), made.text)
    ]
    values = {**_facts(made), "script": made.text, "commands": commands}
    return Answer(
        values, lambda: [made.text.rstrip("\n")], [*_asked(made), *(f"would run: {c}" for c in commands)]
    )


def _submitted(made: Submission) -> Answer:
    outputs = [Path(each) for each in made.job.outputs]
    system, job = made.system, made.job
    made.script.parent.mkdir(parents=True, exist_ok=True)
    write_atomic(made.script, made.text, durable=True)
    for output in outputs:
        RunDirectory(output).batch_cancel.unlink(missing_ok=True)
    ids = []
    for command in system.submissions(job, str(made.script), made.text):
        done = answer_of(command)
        ids.append(system.number(done.stdout))
        if not ids[-1]:
            raise ClusterError(
                f"{command.words[0]} has ended well, but printed no number of a job: {done.said!r}; look "
                "into the queue before you submit again"
            )
    each = [system.task(ids[0], n) for n in range(1, len(outputs) + 1)] if job.is_array else ids
    for output, task, number in zip(outputs, job.tasks, each, strict=True):
        append_batch_job(output, _record(made, output, task, number))
    where = [f"log: {system.log_of(job.log, number)}" for number in each[:1]]
    look = [f"look: hpcbal status {shlex.quote(str(output))}" for output in outputs[:1]]
    values = {**_facts(made), "ids": ids, "script": str(made.script)}
    first = f"submitted {' '.join(ids)} to {system.title}"
    return Answer(values, lambda: [first, *_asked(made), *where, *look])


def _record(made: Submission, output: Path, task: tuple[str, ...], number: str) -> BatchRecord:
    return BatchRecord(
        system=made.system.name,
        id=number,
        submitted_s=time.time(),
        directory=os.getcwd(),
        script=os.path.abspath(made.script),
        log=os.path.abspath(made.system.log_of(made.job.log, number)),
        num_nodes=made.job.num_nodes,
        ranks_per_node=made.job.ranks_per_node,
        time_s=made.job.time_s,
        max_restarts=made.job.max_restarts,
        words=task,
        why=made.needs.why,
    )


def _facts(made: Submission) -> dict[str, Any]:
    job = replace(made.job, site=SiteHabits())
    return {"system": made.system.name, "job": to_jsonable(job), "why": list(made.needs.why)}


def _asked(made: Submission) -> list[str]:
    """Return what is asked for, and why, in lines."""
    job = made.job
    gpus = f" and {count_text(job.gpus_per_node, 'GPU')}" if job.gpus_per_node else ""
    ranks = count_text(job.ranks_per_node, "rank")
    asked = (
        f"asks for {count_text(job.num_nodes, 'node')} with {ranks}{gpus} each, "
        f"for {duration_text(job.time_s)}: {job.num_nodes * job.time_s / 3600.0:.3g} node-hours"
    )
    return [asked, *(f"  {reason}" for reason in made.needs.why)]
