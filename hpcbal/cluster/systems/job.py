"""A batch job as hpcbal asks for it, and what a scheduler says about one."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, TypeAlias

from hpcbal.errors import ClusterError

LEAD_S = 300
"""So long before its end, a job is asked to stop."""
MOST_RESTARTS = 50
"""In the scripts that are shipped: stop to start a job again that never finishes."""


OF_THIS_JOB = ("HPCBAL_CHAIN", "HPCBAL_END_FILE", "HPCBAL_END_TIME", "HPCBAL_TASK", "SLURM_RESTART_COUNT")
OF_ARRAYS = "SLURM_ARRAY_"
"""Variables of a job: one that is submitted from inside it inherits them, and would take them for its own."""


@dataclass(frozen=True, slots=True)
class SiteHabits:
    """The parts of a job script that are the same for all jobs of a site.

    Attributes:
        account: who pays; a project in PBS and LSF, a bank in Flux.
        partition: where it waits; a queue in PBS, LSF and Flux.
        modules: for `module load`.
        venv: the environment with hpcbal; empty: the script looks for it.
        container: words that start a command in the container, such as `apptainer exec --nv a.sif`.
        launcher: the program that starts the ranks; empty: the first one of the system.
        launcher_options: more options of the launcher, in words.
        options: more options of the job, in words, as the system's submit command takes them.
        before: lines of the shell in front of the modules.
        after: lines of the shell once the run has ended.
    """

    account: str = ""
    partition: str = ""
    modules: tuple[str, ...] = ()
    venv: str = ""
    container: tuple[str, ...] = ()
    launcher: str = ""
    launcher_options: tuple[str, ...] = ()
    options: tuple[str, ...] = ()
    before: tuple[str, ...] = ()
    after: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class BatchJob:
    """One job, or an array of jobs that differ only in the words of their command.

    Attributes:
        name: for the queue.
        num_nodes: number of nodes, >= 1.
        ranks_per_node: number of ranks on each node, >= 1.
        time_s: time limit in seconds, >= 60.
        cores_per_rank: number of cores for each rank; None: as many as the system gives.
        gpus_per_node: number of GPUs on each node, >= 0.
        tasks: the words behind `hpcbal`, of each task of an array; of a single job there is one. Empty: the
            script takes them when it is submitted, like those that are shipped.
        outputs: the output directory of each task.
        is_array: whether it is an array; one of a single task is possible.
        max_restarts: how often the job may come back after it has stopped without having finished; 0: never.
        lead_s: so many seconds before its end the job is asked to stop.
        log: file for what the job prints, with the marks of the system; empty: in the current directory.
        script: the file from which its script is submitted, absolute; the batch system copies it.
        cancel: name of a file; while an output directory has it, the job stops, and does not come back.
        exclusive: whether no other job may be on its nodes.
        compare: the words behind `hpcbal` that compare the runs of an array.
        after: identifiers of jobs that must have ended before.
        site: the habits of the site.
    """

    name: str
    num_nodes: int
    ranks_per_node: int
    time_s: int
    cores_per_rank: int | None = None
    gpus_per_node: int = 0
    tasks: tuple[tuple[str, ...], ...] = ()
    outputs: tuple[str, ...] = ()
    is_array: bool = False
    max_restarts: int = 0
    lead_s: int = LEAD_S
    log: str = ""
    script: str = ""
    cancel: str = "batch.cancel"
    exclusive: bool = True
    compare: tuple[str, ...] = ()
    after: tuple[str, ...] = ()
    site: SiteHabits = field(default_factory=SiteHabits)

    @property
    def num_ranks(self) -> int:
        """Return the number of ranks on all nodes."""
        return self.num_nodes * self.ranks_per_node


class Phase(Enum):
    """Where a job is."""

    PENDING = "pending"
    RUNNING = "running"
    ENDED = "ended"
    GONE = "gone"
    """The scheduler has said that it does not know the job, or no longer."""
    UNKNOWN = "unknown"
    """The scheduler has not answered, or nothing that hpcbal understands: the job may wait or run."""


@dataclass(frozen=True, slots=True)
class QueueState:
    """The state of a job as its scheduler describes it.

    Attributes:
        phase: where it is.
        word: the scheduler's own word, such as `COMPLETED`.
        reason: why it waits, in the scheduler's words; empty if it does not say.
        starts_s: when a waiting job is expected to start, in seconds of the Unix epoch; None: not known.
        until_s: the time limit of a running job, or the end of one that has ended; None: not known.
        exit_code: of a job that has ended; None: not known.
        nodes: the nodes as the scheduler writes them; empty if it has none.
        problem: why its state is not known; empty if it is.
        submitted_s: when it was submitted, in seconds of the Unix epoch, where a script cannot know otherwise
            that it starts for the first time; None elsewhere, or where the time is not known.
    """

    phase: Phase
    word: str = ""
    reason: str = ""
    starts_s: float | None = None
    until_s: float | None = None
    exit_code: int | None = None
    nodes: str = ""
    problem: str = ""
    submitted_s: float | None = None


GONE = QueueState(Phase.GONE)

_MOST_SHOWN = 100
_END_OF_CLOCKS_S = 2.0**37
"""Some thousand years from now: schedulers write such numbers for "never"."""


def not_understood(printed: str) -> QueueState:
    """Return the state of a job about which a scheduler has said what hpcbal does not understand.

    Args:
        printed: the words of the scheduler.
    """
    shown = " ".join(printed.split())
    shown = f"{shown[:_MOST_SHOWN]}..." if len(shown) > _MOST_SHOWN else shown
    said = f"the scheduler has said {shown!r}" if shown else "the scheduler has said nothing about it"
    return QueueState(Phase.UNKNOWN, problem=f"{said}, which this hpcbal does not understand")


def moment_s(seconds: float) -> float | None:
    """Return a time in seconds of the Unix epoch; None if no calendar has it."""
    return float(seconds) if 0.0 < seconds < _END_OF_CLOCKS_S else None


def part(values: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    """Return an object within what a scheduler says as JSON; empty if it has none."""
    found = values.get(name)
    return found if isinstance(found, dict) else {}


@dataclass(frozen=True, slots=True)
class Command:
    """A command of a scheduler.

    Attributes:
        words: its words.
        stdin: text for its standard input; None: none.
        environ: variables that it gets besides those of this process.
    """

    words: tuple[str, ...]
    stdin: str | None = None
    environ: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Done:
    """The text that a command has printed, and its code."""

    code: int
    stdout: str
    stderr: str

    @property
    def said(self) -> str:
        """Return the last lines that it has printed, for people, in one line."""
        lines = (self.stderr.strip() or self.stdout.strip()).splitlines()
        return "; ".join(stripped for line in lines[-_MOST_LINES:] if (stripped := line.strip()))


_MOST_LINES = 5


_UNKNOWN_JOB = re.compile(
    r"invalid job id|unknown job|jobid \S+ unknown|is not found|job has finished", re.IGNORECASE
)
"""The words of Slurm, PBS (two), Flux and LSF for a job that they do not know, or no longer."""


def is_forgotten(done: Done) -> bool:
    """Return whether an answer says that the scheduler does not know a job."""
    return done.code != 0 and _UNKNOWN_JOB.search(f"{done.stderr}\n{done.stdout}") is not None


def answers(
    jobs: Sequence[str], command: Command, done: Done, read: Callable[[str], Mapping[str, QueueState]]
) -> dict[str, QueueState]:
    """Return the states of jobs by the answer to a question about all of them.

    Args:
        jobs: their identifiers.
        command: the question.
        done: the answer; that a job is not known is one, too.
        read: finds the states in it, by job.

    Raises:
        ClusterError: if the scheduler could not be asked.
    """
    if done.code and not is_forgotten(done):
        raise ClusterError(refusal(command, done))
    shown = read(done.stdout)
    otherwise = not_understood(done.stdout)
    if len(jobs) == 1:
        return {jobs[0]: next(iter(shown.values()), GONE if done.code else otherwise)}
    forgotten = set(re.findall(r"[^\s<>]+", done.stderr)) if done.code else set()
    return {
        job: shown.get(job) or (GONE if forgotten & {job, job.partition("[")[0]} else otherwise)
        for job in jobs
    }


def refusal(command: Command, done: Done) -> str:
    """Return a sentence about a command that has failed."""
    return f"{command.words[0]} has ended with {done.code}: {done.said}"


Run: TypeAlias = Callable[[Command], Done]
"""Runs a command of a scheduler; tests give their own."""


@dataclass(frozen=True, slots=True)
class SiteFacts:
    """Facts about a site that its batch system tells.

    Attributes:
        partition: the partition or queue of jobs that name none; empty: not known.
        cores_per_node, gpus_per_node: of a node there; None: not known.
        launcher: the launcher, if it is not the system's first one.
    """

    partition: str = ""
    cores_per_node: int | None = None
    gpus_per_node: int | None = None
    launcher: str = ""


@dataclass(frozen=True, slots=True)
class System:
    """A batch system: what hpcbal needs of it.

    Attributes:
        name: as `--system` and the site file name it.
        title: name for people.
        program: the command that submits, by which the system is found.
        launchers: programs that start ranks there, the usual one first.
        suffix: of the names of its scripts.
        options: returns the lines at the head of a script that say what a job needs.
        texts: words of its script, by name: `shown` says how to give a job more time, and a later signal, and
            the others are for scripts that are shipped.
        log_name: returns the name of a log, with the system's marks for the numbers of an array or a job.
        log_of: returns the name of the log of a job, by that name and the identifier.
        submissions: returns the commands that submit a script, one for each job that they make.
        number: finds the identifier of the job in what such a command has printed; empty if it is not there.
        task: returns the identifier of a task of an array, by that of the array and the number from 1.
        cluster: returns the name of the cluster that answers; empty: not known, or part of the identifiers.
        question: returns the command that shows jobs.
        read: returns the states of jobs by what that command prints.
        ask: returns the state of each job.
        cancel: returns the command that cancels jobs at once.
        signal: returns the command that sends USR2 to the script of a job, which then stops cleanly; None:
            the script itself looks for its file `cancel` in the output directory.
        watches: whether the script signals itself before the end of the job, looks for its file `cancel`, and
            submits itself again, because the system does not requeue for users.
        numbers: fields of a job that its script holds, because the system does not tell them.
        look: returns the facts about a site that the system tells.
        own_options: patterns of options that hpcbal itself gives and computes with, each with what says the
            same to `hpcbal submit`; they match at the beginning of an option and its value.
        queue: the command by which users see their jobs in the queue.
        code_to_end: with which code a script ends that has stopped cleanly and does not come back.
    """

    name: str
    title: str
    program: str
    launchers: tuple[str, ...]
    suffix: str
    options: Callable[[BatchJob], list[str]]
    texts: Mapping[str, str]
    log_name: Callable[[bool], str]
    log_of: Callable[[str, str], str]
    submissions: Callable[[BatchJob, str, str], list[Command]]
    number: Callable[[str], str]
    task: Callable[[str, int], str]
    question: Callable[[Sequence[str]], Command]
    read: Callable[[str], Mapping[str, QueueState]]
    ask: Callable[[Sequence[str], Run], dict[str, QueueState]]
    cancel: Callable[[Sequence[str]], Command]
    signal: Callable[[str], Command] | None = None
    watches: bool = False
    numbers: tuple[str, ...] = ()
    cluster: Callable[[Run], str] = lambda run: ""
    look: Callable[[Run], SiteFacts] = lambda run: SiteFacts()
    own_options: Mapping[str, str] = field(default_factory=dict)
    queue: str = ""
    code_to_end: Callable[[BatchJob], int] = lambda job: 75

    def state_of(self, printed: str) -> QueueState:
        """Return the state of the first job that the answer to `question` describes."""
        return next(iter(self.read(printed).values()), not_understood(printed))
