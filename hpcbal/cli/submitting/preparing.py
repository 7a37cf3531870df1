"""Make the batch job of a command line."""

from __future__ import annotations

import argparse
import os
import re
import sys
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass, replace
from pathlib import Path

from hpcbal.cli.submitting.earlier import jobs_before
from hpcbal.cli.submitting.needs import Needs, needs_of_all
from hpcbal.cli.submitting.noting import keys_of
from hpcbal.cli.submitting.tasks import path_word, tasks_of
from hpcbal.cluster.systems import SYSTEMS, BatchJob, SiteHabits, System, detect
from hpcbal.cluster.systems.job import Command
from hpcbal.cluster.systems.script import check_site_options, render, render_compare, word
from hpcbal.config import resolved_yaml
from hpcbal.config.site import SiteConfig, check_launcher, check_venv, load_site
from hpcbal.config.source.meant import did_you_mean
from hpcbal.errors import InputError
from hpcbal.kinds import JOBS, KINDS
from hpcbal.telemetry.claim.directory import refuse_other_run
from hpcbal.telemetry.files.batch_jobs import read_batch_jobs
from hpcbal.telemetry.files.run_directory import RunDirectory

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
