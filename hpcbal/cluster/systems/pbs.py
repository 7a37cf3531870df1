"""PBS: OpenPBS and PBS Professional, with qsub, qstat and qdel."""

from __future__ import annotations

import json
import re
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace

from hpcbal.cluster.systems.job import (
    BatchJob,
    Command,
    Phase,
    QueueState,
    Run,
    SiteFacts,
    System,
    answers,
    moment_s,
    not_understood,
    part,
)
from hpcbal.cluster.systems.script import clock, directives, folder_of, site_options

_PHASE_OF = {
    **dict.fromkeys("HQTW", Phase.PENDING),
    **dict.fromkeys("BERSU", Phase.RUNNING),
    **dict.fromkeys("FMX", Phase.ENDED),
}
"""By the state that `qstat -f` shows; B is an array that has begun, X one of its jobs that is over."""
_NUMBER = re.compile(r"^\d+(?:\[\])?(?:\.[\w.-]+)?$", re.MULTILINE)


def options(job: BatchJob) -> list[str]:
    """Return the lines at the head of the script."""
    site = job.site
    chunk = f"select={job.num_nodes}:ncpus={job.ranks_per_node * (job.cores_per_rank or 1)}"
    chunk += f":mpiprocs={job.ranks_per_node}"
    chunk += f":ngpus={job.gpus_per_node}" if job.gpus_per_node else ""
    wanted = [
        ["-N", job.name],
        ["-l", chunk],
        ["-l", "place=scatter:excl" if job.exclusive else "place=scatter"],
        ["-l", f"walltime={clock(job.time_s)}"],
        ["-r", "y" if job.max_restarts or _is_array(job) else "n"],  # PBS refuses arrays with -r n
        ["-j", "oe"],
        ["-o", folder_of(job.log)] if "/" in job.log else [],
        ["-A", site.account] if site.account else [],
        ["-q", site.partition] if site.partition else [],
    ]
    return directives("#PBS", [each for each in wanted if each] + site_options(site.options))


def submissions(job: BatchJob, script: str, text: str) -> list[Command]:
    """Return the command that submits the script; an array of one is a job, because PBS refuses it."""
    words = ["qsub"]
    if _is_array(job):
        words += ["-J", f"1-{len(job.tasks)}"]
    elif job.is_array:
        words += ["-v", "HPCBAL_TASK=1"]
    if job.after:
        words += ["-W", f"depend=afterany:{':'.join(job.after)}"]
    return [Command((*words, script))]


def _is_array(job: BatchJob) -> bool:
    return len(job.tasks) > 1


def number(printed: str) -> str:
    """Find the identifier in what `qsub` has printed: `12.server`, of an array `12[].server`."""
    found = _NUMBER.search(printed)
    return found[0] if found else ""


def question(jobs: Sequence[str]) -> Command:
    """Return the command that shows jobs.

    Its JSON would name only the first of several jobs (OpenPBS issue 2672), and is none where a variable of
    a job has odd characters (issues 1255, 2541).
    """
    return Command(("qstat", "-f", *jobs))


def ask(jobs: Sequence[str], run: Run) -> dict[str, QueueState]:
    """Return the state of each job; PBS forgets it some days after its end, or at once, as it is set up.

    Raises:
        ClusterError: if PBS cannot be asked.
    """
    asked = Command(("qstat", "-x", "-f", *jobs))  # with those that have ended
    done = run(asked)
    if done.code and "maintain job history" in done.stderr:
        asked = question(jobs)
        done = run(asked)
    return answers(jobs, asked, done, read)


def read(printed: str) -> dict[str, QueueState]:
    """Read what `qstat -f` prints, by job; a long value goes on behind a tab."""
    jobs: dict[str, dict[str, str]] = {}
    attributes: dict[str, str] = {}
    for line in printed.replace("\n\t", "").splitlines():
        head, _, job = line.partition("Job Id: ")
        if job and not head:
            attributes = jobs.setdefault(job.strip(), {})
        else:
            name, _, value = line.strip().partition(" = ")
            attributes.setdefault(name, value)
    return {job: _state(attributes) for job, attributes in jobs.items()}


def _state(job: Mapping[str, str]) -> QueueState:
    letter = job.get("job_state", "")
    if letter not in _PHASE_OF:
        return not_understood(letter)
    phase = _PHASE_OF[letter]
    started_s, limit_s = _time(job.get("stime")), _limit_s(job.get("Resource_List.walltime", ""))
    return QueueState(
        phase,
        letter,
        reason=job.get("comment", "") if phase is Phase.PENDING else "",
        starts_s=_time(job.get("estimated.start_time")) if phase is Phase.PENDING else None,
        until_s=moment_s(started_s + limit_s) if phase is Phase.RUNNING and started_s and limit_s else None,
        exit_code=_exit_code(job.get("Exit_status", "")) if phase is Phase.ENDED else None,
        nodes="+".join(re.findall(r"(?:^|\+)([^/+]+)", job.get("exec_host", ""))),
        submitted_s=_time(job.get("ctime")),
    )


def look(run: Run) -> SiteFacts:
    """Return the facts about the nodes, and the queue of jobs that name none."""
    queue = re.search(r"default_queue = (\S+)", run(Command(("qstat", "-B", "-f"))).stdout)
    facts = facts_of_pbsnodes(run(Command(("pbsnodes", "-a", "-F", "json"))).stdout)
    return replace(facts, partition=queue[1] if queue else "")


def facts_of_pbsnodes(printed: str) -> SiteFacts:
    """Read what `pbsnodes -a -F json` prints; the most frequent kind of node counts."""
    try:
        nodes = [part(node, "resources_available") for node in json.loads(printed)["nodes"].values()]
        kinds = Counter((int(node.get("ncpus", 0)), int(node.get("ngpus", 0))) for node in nodes)
    except (ValueError, KeyError, TypeError, AttributeError):
        return SiteFacts()
    cores, gpus = kinds.most_common(1)[0][0] if kinds else (0, 0)
    return SiteFacts(cores_per_node=cores or None, gpus_per_node=gpus if cores else None)


def _limit_s(text: str) -> float | None:
    parts = text.split(":")
    if len(parts) != 3 or not all(part.isdecimal() and len(part) < 10 for part in parts):
        return None
    return float(3600 * int(parts[0]) + 60 * int(parts[1]) + int(parts[2]))


def _time(text: object) -> float | None:
    """`Fri Nov 11 17:57:05 2016`, in the time zone of this machine."""
    try:
        return moment_s(time.mktime(time.strptime(str(text), "%a %b %d %H:%M:%S %Y")))
    except (ValueError, OverflowError):
        return None


def _exit_code(text: str) -> int | None:
    """256 and more are signals, and negative numbers errors of PBS."""
    if not text.isdecimal() or len(text) > 9:
        return None
    return int(text) if int(text) < 256 else 128 + int(text) % 128


PBS = System(
    name="pbs",
    title="PBS",
    program="qsub",
    queue="qstat -u $USER",
    launchers=("mpirun", "mpiexec"),
    suffix=".pbs",
    options=options,
    texts={
        "shown": "more time (-l walltime)",
        "launchers": "Open MPI's; or mpiexec, of MPICH, Intel MPI or PALS",
        "launcher_option": "--mca pml ucx",
        "usage": "HPCBAL_ARGUMENTS='[profile | evaluate] CONFIG-OR-DIR ...' qsub -v HPCBAL_ARGUMENTS "
        "pbs/FILE",
    },
    log_name=lambda is_array: "hpcbal-%j.log",
    log_of=lambda name, job: name.replace("%j", job.partition(".")[0]),
    submissions=submissions,
    number=number,
    task=lambda job, task: job.replace("[]", f"[{task}]"),
    question=question,
    read=read,
    ask=ask,
    cancel=lambda jobs: Command(("qdel", *jobs)),
    numbers=("num_nodes", "ranks_per_node"),
    look=look,
    own_options={
        r"-l ?(.*,)?(select|nodes|ncpus|mpiprocs)=": "--nodes, and cores_per_node and gpus_per_node of the "
        "site file",
        r"-l ?(.*,)?walltime=": "--time",
        r"-J": "--array",
        r"-W ?(.*,)?depend=": "--after",
        r"-W ?(.*,)?block=": "hpcbal status --watch",
        r"-o": "--output, the directory in which the log lies",
        r"-I": "qsub -I with a shell, and hpcbal run in it",
        r"-z": "none, because it hides the number of the job",
    },
    watches=True,
)
