"""LSF: bsub, bjobs and bkill."""

from __future__ import annotations

import re
import time
from collections.abc import Sequence

from hpcbal.cluster.systems.job import (
    BatchJob,
    Command,
    Phase,
    QueueState,
    Run,
    System,
    answers,
    moment_s,
    not_understood,
)
from hpcbal.cluster.systems.script import clock, directives, site_options

_PHASES = {
    Phase.PENDING: "PEND PROV WAIT",
    Phase.RUNNING: "RUN USUSP SSUSP PSUSP UNKWN",
    Phase.ENDED: "DONE EXIT ZOMBI",
}
_PHASE_OF = {word: phase for phase, states in _PHASES.items() for word in states.split()}
_FIELDS = 'jobid jobindex stat exit_code pend_reason time_left exec_host submit_time delimiter="|"'
_CLOCKS_S = 86400.0
"""Clocks, and time zones, may differ by that."""


def options(job: BatchJob) -> list[str]:
    """Return the lines at the head of the script."""
    site = job.site
    cores = f" affinity[core({job.cores_per_rank})]" if job.cores_per_rank else ""
    if job.site.launcher == "jsrun":
        nodes = [["-nnodes", str(job.num_nodes)]]
    else:
        nodes = [["-n", str(job.num_ranks)], ["-R", f"span[ptile={job.ranks_per_node}]{cores}"]]
        nodes += [["-gpu", f"num={job.gpus_per_node}"]] if job.gpus_per_node else []
        nodes += [["-x"]] if job.exclusive else []
    wanted = [
        ["-J", job.name],
        *nodes,
        ["-W", clock(job.time_s, seconds=False)],
        *([["-wa", "USR2"], ["-wt", str(-(-job.lead_s // 60))]] if job.lead_s else []),
        *([["-Q", "75"], ["-r"]] if job.max_restarts else [["-rn"]]),
        ["-o", job.log or log_name(job.is_array)],
        *([["-P", site.account]] if site.account else []),
        *([["-q", site.partition]] if site.partition else []),
    ]
    return directives("#BSUB", wanted + site_options(site.options))


def log_name(is_array: bool) -> str:
    """Return the name of a log, with LSF's marks for the numbers of the job."""
    return "hpcbal-%J_%I.log" if is_array else "hpcbal-%J.log"


def log_of(name: str, job: str) -> str:
    """Return the name of the log of a job: `12`, or `12[3]`."""
    number, _, task = job.rstrip("]").partition("[")
    return name.replace("%J", number).replace("%I", task)


def submissions(job: BatchJob, script: str, text: str) -> list[Command]:
    """Return the command that submits the script, from its standard input."""
    words = ["bsub"]
    if job.is_array:
        words += ["-J", f"{job.name}[1-{len(job.tasks)}]"]
    if job.after:
        words += ["-w", " && ".join(f"ended({each})" for each in job.after)]
    return [Command(tuple(words), stdin=text)]


def number(printed: str) -> str:
    """Find the number in what `bsub` prints: `Job <12> is submitted to queue <normal>.`, also translated."""
    found = re.search(r"^[^<\n]*<(\d+)>.*<", printed, re.MULTILINE)
    return found[1] if found else ""


def question(jobs: Sequence[str]) -> Command:
    """Return the command that shows jobs, and tasks of arrays, in a line each."""
    return Command(("bjobs", "-a", "-noheader", "-o", _FIELDS, *jobs))


def cluster(run: Run) -> str:
    """Return the name of the cluster that answers; empty if it does not say.

    Raises:
        ClusterError: if the command is not here, or does not answer.
    """
    found = re.search(r"^My cluster name is (\S+)", run(Command(("lsid",))).stdout, re.MULTILINE)
    return found[1] if found else ""


def ask(jobs: Sequence[str], run: Run) -> dict[str, QueueState]:
    """Return the state of each job, with one question; LSF forgets it about an hour after its end.

    Raises:
        ClusterError: if LSF cannot be asked.
    """
    asked = question(jobs)
    return answers(jobs, asked, run(asked), read)


def read(printed: str) -> dict[str, QueueState]:
    """Read the lines for which `question` asks; what is left of the time of a job counts from now."""
    states: dict[str, QueueState] = {}
    for line in printed.splitlines():
        number, index = ([*map(str.strip, line.split("|")), ""])[:2]
        states[f"{number}[{index}]" if index not in ("", "-", "0") else number] = _state(line, time.time())
    return states


def _state(line: str, now_s: float) -> QueueState:
    fields = ["" if field.strip() == "-" else field.strip() for field in line.split("|")]
    if len(fields) != 8 or fields[2] not in _PHASE_OF:
        return not_understood(line)
    _, _, word, code, reason, left, nodes, submitted = fields
    phase = _PHASE_OF[word]
    ended = 0 if word == "DONE" else int(code) if code.isdecimal() and len(code) < 10 else None
    time_left = re.match(r"(\d{1,9}):(\d{1,9})", left)
    return QueueState(
        phase,
        word,
        reason=reason if phase is Phase.PENDING else "",
        until_s=moment_s(now_s + 3600 * int(time_left[1]) + 60 * int(time_left[2]))
        if phase is Phase.RUNNING and time_left
        else None,
        exit_code=ended if phase is Phase.ENDED else None,
        nodes=nodes,
        submitted_s=_submitted_s(submitted, now_s),
    )


def _submitted_s(text: str, now_s: float) -> float | None:
    """Read `Nov 11 17:57`, which has no year: the last one that is not to come."""
    this_year = time.localtime(now_s).tm_year
    for year in (this_year, this_year - 1):
        try:
            then_s = time.mktime(time.strptime(f"{text} {year}", "%b %d %H:%M %Y"))
        except (ValueError, OverflowError):
            continue
        if then_s < now_s + _CLOCKS_S:
            return then_s
    return None


LSF = System(
    name="lsf",
    title="LSF",
    program="bsub",
    queue="bjobs",
    launchers=("mpirun", "jsrun"),
    suffix=".lsf",
    options=options,
    texts={
        "shown": "more time (-W), or its signal a shorter lead (-wt)",
        "launchers": "Open MPI's; or jsrun",
        "launcher_option": "--mca pml ucx",
        "usage": "HPCBAL_ARGUMENTS='[profile | evaluate] CONFIG-OR-DIR [ARGUMENT...]' bsub < lsf/FILE",
    },
    log_name=log_name,
    log_of=log_of,
    submissions=submissions,
    number=number,
    task=lambda job, task: f"{job}[{task}]",
    question=question,
    read=read,
    ask=ask,
    cluster=cluster,
    cancel=lambda jobs: Command(("bkill", *jobs)),
    signal=lambda job: Command(("bkill", "-s", "USR2", job)),
    numbers=("num_nodes", "ranks_per_node", "cores_per_rank", "gpus_per_node"),
    own_options={
        r"-nnodes\b|-n\b|-R .*span\[": "--nodes and slots.per_node",
        r"-W\b": "--time",
        r"-J ?.*\[": "--array",
        r"-w\b": "--after",
        r"-oo?\b": "--output, the directory in which the log lies",
        r"-cwd\b": "cd, because relative paths start where hpcbal submit runs",
        r"-K\b": "hpcbal status --watch",
        r"-I[sp]?\b": "bsub -Is with a shell, and hpcbal run in it",
    },
    # LSF cannot be asked to stop to repeat a job that ends with 75.
    code_to_end=lambda job: 1 if job.max_restarts else 75,
)
