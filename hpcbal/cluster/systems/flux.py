"""Flux: flux batch, flux jobs and flux cancel."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from hpcbal.cluster.systems.job import (
    BatchJob,
    Command,
    Phase,
    QueueState,
    Run,
    System,
    answers,
    moment_s,
    part,
)
from hpcbal.cluster.systems.script import directives, long_options, site_options

_PHASE_OF = {
    **dict.fromkeys(("NEW", "DEPEND", "PRIORITY", "SCHED"), Phase.PENDING),
    **dict.fromkeys(("RUN", "CLEANUP"), Phase.RUNNING),
    "INACTIVE": Phase.ENDED,
}
_NUMBER = re.compile(r"^[ƒf][1-9A-HJ-NP-Za-km-z]+$", re.MULTILINE)
"""In base 58; a site's own lines may look alike where the ƒ is written as f."""


def options(job: BatchJob) -> list[str]:
    """Return the lines at the head of the script: a slot of the job is a node."""
    site = job.site
    wanted = [f"--job-name={job.name}", f"--nodes={job.num_nodes}"]
    if job.exclusive:
        wanted.append("--exclusive")
    else:
        cores = job.ranks_per_node * (job.cores_per_rank or 1)
        wanted += [f"--nslots={job.num_nodes}", f"--cores-per-slot={cores}"]
        wanted += [f"--gpus-per-slot={job.gpus_per_node}"] if job.gpus_per_node else []
    wanted += [
        f"--time-limit={-(-job.time_s // 60)}m",
        f"--output={job.log or log_name(job.is_array)}",
    ]
    wanted += [f"--bank={site.account}"] if site.account else []
    wanted += [f"--queue={site.partition}"] if site.partition else []
    return directives("# flux:", [[each] for each in wanted] + site_options(site.options))


def log_name(is_array: bool) -> str:
    """Return the name of a log; each task of an array is a job of its own."""
    return "hpcbal-{{id}}.log"


def submissions(job: BatchJob, script: str, text: str) -> list[Command]:
    """Return the commands that submit the script: Flux has no arrays, so there is one for each task."""
    words = ["flux", "batch", *(f"--dependency=afterany:{each}" for each in job.after), script]
    if not job.is_array:
        return [Command(tuple(words))]
    tasks = range(1, len(job.tasks) + 1)
    return [Command(tuple(words), environ={"HPCBAL_TASK": str(task)}) for task in tasks]


def number(printed: str) -> str:
    """Find the identifier in what `flux batch` has printed: `ƒM7Zq9AKHno`, or with an f."""
    found = _NUMBER.findall(printed)
    return next((each for each in found if each.startswith("ƒ")), found[-1] if found else "")


def question(jobs: Sequence[str]) -> Command:
    """Return the command that shows a job."""
    return Command(("flux", "jobs", "--json", *jobs))


def ask(jobs: Sequence[str], run: Run) -> dict[str, QueueState]:
    """Return the state of each job.

    Raises:
        ClusterError: if Flux cannot be asked.
    """
    states: dict[str, QueueState] = {}
    for job in jobs:
        asked = question([job])
        states |= answers([job], asked, run(asked), read)
    return states


def read(printed: str) -> dict[str, QueueState]:
    """Read what `flux jobs --json` prints of one job; keys that are not known yet are not there."""
    try:
        job = json.loads(printed)
        phase = _PHASE_OF[job["state"]]
    except (ValueError, KeyError, TypeError, RecursionError):
        return {}
    scheduler = part(part(job, "annotations"), "sched")
    ends = job.get("expiration") if phase is Phase.RUNNING else job.get("t_inactive")
    state = QueueState(
        phase,
        str(job.get("result") or job["state"]),
        reason=_reason(job, scheduler) if phase is not Phase.RUNNING else "",
        starts_s=_seconds(scheduler.get("t_estimate")) if phase is Phase.PENDING else None,
        until_s=None if phase is Phase.PENDING else _seconds(ends),
        exit_code=_exit_code(job.get("returncode")) if phase is Phase.ENDED else None,
        nodes=str(job.get("nodelist", "")),
    )
    return {str(job.get("id", "")): state}


def _reason(job: Mapping[str, Any], scheduler: Mapping[str, Any]) -> str:
    waits = job.get("dependencies") or scheduler.get("reason_pending") or part(job, "exception").get("note")
    return ", ".join(map(str, waits)) if isinstance(waits, list) else str(waits or "")


def _seconds(value: object) -> float | None:
    return moment_s(value) if isinstance(value, int | float) else None


def _exit_code(code: object) -> int | None:
    """Negative codes are signals; -128 is a job that was cancelled before it started."""
    if not isinstance(code, int) or code == -128:
        return None
    return code if code >= 0 else 128 - code


FLUX = System(
    name="flux",
    title="Flux",
    program="flux",
    queue="flux jobs",
    launchers=("flux",),
    suffix=".flux",
    options=options,
    texts={
        "shown": "more time (--time-limit)",
        "launchers": "flux run",
        "launcher_option": "--setopt=pmi=pmix",
        "usage": "flux batch flux/FILE [profile | evaluate] CONFIG-OR-DIR [ARGUMENT...]",
    },
    log_name=log_name,
    log_of=lambda name, job: name.replace("{{id}}", job),
    submissions=submissions,
    number=number,
    task=lambda job, task: job,
    question=question,
    read=read,
    ask=ask,
    cancel=lambda jobs: Command(("flux", "cancel", *jobs)),
    numbers=("num_nodes", "ranks_per_node"),
    own_options={
        f"{long_options('nodes')}|-N": "--nodes",
        f"{long_options('nslots')}|-n": "--nodes and slots.per_node",
        f"{long_options('time-limit')}|-t": "--time",
        long_options("cc", "bcc"): "--array",
        long_options("dependency"): "--after",
        long_options("dry-run"): "hpcbal submit --dry-run",
        long_options("wrap"): "before and after of the site file, because it replaces the script",
        long_options("output"): "--output, the directory in which the log lies",
        long_options("cwd"): "cd, because relative paths start where hpcbal submit runs",
    },
    watches=True,
)
