"""Slurm: sbatch, scontrol, sacct, scancel."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace

from hpcbal.cluster.systems.job import (
    GONE,
    BatchJob,
    Command,
    Phase,
    QueueState,
    Run,
    SiteFacts,
    System,
    is_forgotten,
    moment_s,
    not_understood,
    refusal,
)
from hpcbal.cluster.systems.script import clock, directives, long_options, site_options

PHASES = {
    Phase.PENDING: "PENDING CONFIGURING REQUEUED REQUEUE_FED REQUEUE_HOLD RESV_DEL_HOLD SPECIAL_EXIT",
    Phase.RUNNING: "RUNNING COMPLETING SUSPENDED STOPPED SIGNALING STAGE_OUT RESIZING",
    Phase.ENDED: "COMPLETED CANCELLED FAILED TIMEOUT NODE_FAIL BOOT_FAIL PREEMPTED OUT_OF_MEMORY DEADLINE "
    "REVOKED",
}
"""The states of `scontrol show job` and `sacct`."""
_PHASE_OF = {word: phase for phase, states in PHASES.items() for word in states.split()}
_FIELD = re.compile(r"(?:^|\s)(\w+)=(\S*)")
_ENVIRON = {"SLURM_TIME_FORMAT": "%s", "SLURM_BITSTR_LEN": "0"}
"""Slurm then prints times in seconds of the Unix epoch, and all numbers of an array."""


def _own(letter: str, *names: str) -> str:
    """Return a pattern for an option of sbatch; a letter may stand behind others that take no value."""
    return f"{long_options(*names)}|-[HIOQskv]*{letter}"


def options(job: BatchJob) -> list[str]:
    """Return the lines at the head of the script."""
    site = job.site
    wanted = [
        f"--job-name={job.name}",
        f"--nodes={job.num_nodes}",
        f"--ntasks-per-node={job.ranks_per_node}",
        f"--cpus-per-task={job.cores_per_rank}" if job.cores_per_rank else "",
        f"--gpus-per-node={job.gpus_per_node}" if job.gpus_per_node else "",
        "--exclusive" if job.exclusive else "",
        f"--time={clock(job.time_s)}",
        f"--signal=B:USR2@{job.lead_s}" if job.lead_s else "",
        "--requeue" if job.max_restarts else "--no-requeue",
        "--open-mode=append",
        f"--output={job.log or log_name(job.is_array)}",
        f"--account={site.account}" if site.account else "",
        f"--partition={site.partition}" if site.partition else "",
    ]
    return directives("#SBATCH", [[each] for each in wanted if each] + site_options(site.options))


def log_name(is_array: bool) -> str:
    """Return the name of a log, with Slurm's marks for the numbers of the job."""
    return "hpcbal-%A_%a.log" if is_array else "hpcbal-%j.log"


def submissions(job: BatchJob, script: str, text: str) -> list[Command]:
    """Return the command that submits the script."""
    words = ["sbatch", "--parsable"]
    if job.is_array:
        words.append(f"--array=1-{len(job.tasks)}")
    if job.after:
        words.append(f"--dependency=afterany:{':'.join(job.after)}")
    return [Command((*words, script))]


def number(printed: str) -> str:
    """Find the job's number in what `sbatch --parsable` has printed: `12` or `12;cluster`."""
    found = re.search(r"^(\d+)(?:;\S+)?$", printed, re.MULTILINE)
    return found[1] if found else ""


def question(jobs: Sequence[str]) -> Command:
    """Return the command that shows a job, or all tasks of an array."""
    return Command(("scontrol", "--oneliner", "show", "job", *jobs), environ=_ENVIRON)


def ask(jobs: Sequence[str], run: Run) -> dict[str, QueueState]:
    """Return the state of each job: Slurm's controller forgets a job some minutes after its end.

    The controller is asked once for all tasks of an array, and the accounting once for all jobs that the
    controller does not know or has not described.

    Raises:
        ClusterError: if a command is not here, or does not answer.
    """
    together: dict[str, list[str]] = {}
    for job in jobs:
        together.setdefault(job.partition("_")[0], []).append(job)
    states: dict[str, QueueState] = {}
    for array, some in together.items():
        asked = question([array if len(some) > 1 else some[0]])
        done = run(asked)
        shown, otherwise = read(done.stdout), GONE  # also of a task of an array that ended some minutes ago
        if done.code and not is_forgotten(done):
            otherwise = QueueState(Phase.UNKNOWN, problem=refusal(asked, done))
        elif not done.code and not shown:
            otherwise = not_understood(done.stdout)
        if len(some) == 1:
            otherwise = next(iter(shown.values()), otherwise)
        states.update((job, shown.get(job, otherwise)) for job in some)
    if unknown := [job for job in jobs if states[job].phase in (Phase.GONE, Phase.UNKNOWN)]:
        words = ("sacct", "--noheader", "--parsable2", "--allocations", f"--jobs={','.join(unknown)}")
        done = run(Command((*words, "--format=JobID,State,ExitCode,End,Reason,NodeList"), environ=_ENVIRON))
        if not done.code:
            states |= {job: state for job, state in read(done.stdout).items() if job in unknown}
    return states


def read(printed: str) -> dict[str, QueueState]:
    """Read what `scontrol --oneliner show job` or `sacct` prints, by job; times are in seconds.

    A line for tasks of an array that have not begun, such as `12_[3-5,9]`, belongs to each of them. Of lines
    about one job, such as its starts, the first counts that is not over, or else the last.
    """
    states: dict[str, QueueState] = {}
    for line in printed.splitlines():
        fields = _fields(line)
        job, tasks = fields.get("ArrayJobId") or fields.get("JobId", ""), fields.get("ArrayTaskId", "")
        if line.count("|") == 5:
            name, *values = line.split("|")
            fields = dict(zip(("JobState", "ExitCode", "EndTime", "Reason", "NodeList"), values, strict=True))
            job, _, tasks = name.partition("+")[0].partition("_")
        elif "JobState" not in fields:
            continue
        for each in [f"{job}_{task}" for task in _tasks(tasks)] if tasks else [job]:
            if each not in states or states[each].phase is Phase.ENDED:
                states[each] = _state(fields)
    return states


def _tasks(text: str) -> list[int]:
    """Return the numbers of `3`, or `[1-4,9]`, also with a step (`1-9:2`) or a limit (`1-9%2`)."""
    numbers: list[int] = []
    for first, last, step in re.findall(r"(\d{1,7})(?:-(\d{1,7}))?(?::(\d{1,7}))?", text.partition("%")[0]):
        numbers += range(int(first), int(last or first) + 1, int(step or 1) or 1)
    return numbers


def _fields(line: str) -> dict[str, str]:
    """Return the fields of a line; the first of a name counts: comments and paths stand behind them."""
    fields: dict[str, str] = {}
    for name, value in _FIELD.findall(line):
        fields.setdefault(name, value)
    return fields


def _state(fields: dict[str, str]) -> QueueState:
    word = fields["JobState"].partition(" ")[0]  # CANCELLED by 1000
    if word not in _PHASE_OF:
        return not_understood(word)
    phase = _PHASE_OF[word]
    reason = fields.get("Reason", "")
    if word == "CANCELLED" and reason != "DependencyNeverSatisfied":
        reason = ""  # it says why the job waited, not why it was cancelled
    return QueueState(
        phase,
        word,
        reason="" if reason == "None" else reason,
        starts_s=_time(fields.get("StartTime", "")) if phase is Phase.PENDING else None,
        until_s=None if phase is Phase.PENDING else _time(fields.get("EndTime", "")),
        exit_code=_exit_code(fields.get("ExitCode", ""), word) if phase is Phase.ENDED else None,
        nodes="" if phase is Phase.PENDING else fields.get("NodeList", "").replace("(null)", ""),
    )


def cluster(run: Run) -> str:
    """Return the name of the cluster whose controller answers; empty if it does not say.

    Raises:
        ClusterError: if the command is not here, or does not answer.
    """
    found = re.search(
        r"^ClusterName\s*=\s*(\S+)", run(Command(("scontrol", "show", "config"))).stdout, re.MULTILINE
    )
    return found[1] if found else ""


def look(run: Run) -> SiteFacts:
    """Return the facts about the default partition, and mpirun if srun does not speak PMIx."""
    nodes = run(Command(("sinfo", "--noheader", "--format=%P|%c|%G")))
    types = run(Command(("srun", "--mpi=list")))
    has_pmix = types.code != 0 or "pmix" in types.stdout + types.stderr
    return replace(facts_of_sinfo(nodes.stdout), launcher="" if has_pmix else "mpirun")


def facts_of_sinfo(printed: str) -> SiteFacts:
    """Read what `sinfo --format=%P|%c|%G` prints; the default partition has a `*`."""
    for line in printed.splitlines():
        name, _, rest = line.partition("|")
        cores, _, resources = rest.partition("|")
        if name.endswith("*"):
            gpus = [int(count) for count in re.findall(r"\bgpu:(?:[^:,(]+:)?(\d+)", resources)]
            number = re.match(r"\d+", cores)
            return SiteFacts(name.rstrip("*"), int(number[0]) if number else None, sum(gpus))
    return SiteFacts()


def _time(text: str) -> float | None:
    return moment_s(float(text)) if text.isdecimal() else None


def _exit_code(text: str, word: str) -> int | None:
    """`75:0` is a code, `0:15` the end by a signal; `0:0` is none of a job that was cancelled or lost."""
    code, _, signal = text.partition(":")
    if not (code.isdecimal() and len(code) < 10) or (text == "0:0" and word != "COMPLETED"):
        return None
    return 128 + int(signal) if signal.isdecimal() and 0 < int(signal[:9]) < 128 else int(code)


SLURM = System(
    name="slurm",
    title="Slurm",
    program="sbatch",
    queue="squeue --me",
    launchers=("srun", "mpirun"),
    suffix=".sbatch",
    options=options,
    texts={
        "shown": "more time (--time), or its signal a shorter lead (--signal=B:USR2@SECONDS)",
        "launchers": "or mpirun, where Slurm has no PMIx (see: srun --mpi=list)",
        "launcher_option": "--mpi=pmix_v4",
        "usage": "sbatch slurm/FILE [profile | evaluate] CONFIG-OR-DIR [ARGUMENT...]",
    },
    log_name=log_name,
    log_of=lambda name, job: name.replace("%A_%a", job).replace("%j", job),
    submissions=submissions,
    number=number,
    task=lambda job, task: f"{job}_{task}",
    question=question,
    read=read,
    ask=ask,
    cancel=lambda jobs: Command(("scancel", *jobs)),
    cluster=cluster,
    look=look,
    own_options={
        _own("N", "nodes"): "--nodes",
        _own("n", "ntasks", "ntasks-per-node", "tasks-per-node"): "--nodes and slots.per_node",
        _own("t", "time"): "--time",
        _own("a", "array"): "--array",
        _own("d", "dependency"): "--after",
        _own("o", "output"): "--output, the directory in which the log lies",
        _own("D", "chdir"): "cd, because relative paths start where hpcbal submit runs",
        _own("M", "clusters"): "hpcbal submit on that cluster, which is asked about the job later",
        _own("W", "wait"): "hpcbal status --watch",
        long_options("test-only"): "hpcbal submit --dry-run",
        long_options("wrap"): "before and after of the site file, because it replaces the script",
    },
    signal=lambda job: Command(("scancel", "--batch", "--signal=USR2", job)),
)
