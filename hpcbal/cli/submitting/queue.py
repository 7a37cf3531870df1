"""The batch jobs of runs as their schedulers see them, for programs and for people."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from hpcbal.cluster.systems import SYSTEMS
from hpcbal.cluster.systems.commands import run_command
from hpcbal.cluster.systems.job import Command, Done, Phase, QueueState, Run
from hpcbal.errors import ClusterError
from hpcbal.telemetry.files.batch_jobs import BatchRecord, read_batch_jobs
from hpcbal.telemetry.files.json_lines import duration_text, utc_text

ANSWER_S = 10.0
"""So long a scheduler may take to say how a job is; people wait for it."""


INTERVAL_S = 30.0
"""So often somebody who watches a run asks a scheduler, which serves others, too."""


@dataclass(frozen=True, slots=True)
class JobInQueue:
    """A batch job of a run.

    Attributes:
        record: how it was submitted.
        state: its state.
        is_elsewhere: whether its scheduler is that of another cluster than the one that answers here, where
            its number may be that of another job.
    """

    record: BatchRecord
    state: QueueState
    is_elsewhere: bool = False

    @property
    def phase(self) -> Phase:
        """Return where it is."""
        return self.state.phase

    @property
    def is_live(self) -> bool:
        """Return whether it waits or runs."""
        return self.phase in (Phase.PENDING, Phase.RUNNING)

    @property
    def may_be_live(self) -> bool:
        """Return whether it waits or runs, or may do so, because its state is not known."""
        return self.is_live or self.phase is Phase.UNKNOWN

    @property
    def can_be_asked_for(self) -> bool:
        """Return whether the commands of its scheduler are here: it may answer later."""
        system = SYSTEMS.get(self.record.system)
        return system is not None and shutil.which(system.program) is not None

    @property
    def can_be_reached(self) -> bool:
        """Return whether a command about its number, sent from here, means this job."""
        return bool(self.record.id) and self.record.system in SYSTEMS and not self.is_elsewhere

    @property
    def watches(self) -> bool:
        """Return whether its script may submit itself again, unseen by its scheduler."""
        system = SYSTEMS.get(self.record.system)
        return system is not None and system.watches

    @property
    def name(self) -> str:
        """Return its name for people."""
        system = SYSTEMS.get(self.record.system)
        title = self.record.system if system is None else system.title
        if not self.record.id:
            return f"a job submitted at {_moment(self.record.submitted_s)} ({title})"
        return f"job {self.record.id} ({title})"


def within(limit_s: float, clock: Callable[[], float] = time.monotonic) -> Run:
    """Return a function that runs commands, all of which together may take so many seconds from now on."""
    end_s = clock() + limit_s

    def run(command: Command) -> Done:
        left_s = end_s - clock()
        if left_s <= 0.0:
            raise ClusterError(
                f"{command.words[0]}: no answer within {limit_s:g} s, with the questions before it; the "
                "scheduler is busy or down, try again later"
            )
        return run_command(command, timeout_s=left_s)

    return run


def _doubt(record: BatchRecord) -> str:
    """Return a sentence about a job that was noted before its system was asked, and not since."""
    if record.is_over:
        return "its number is not known; it was cancelled, and ends when it starts"
    return (
        "its number is not known: 'hpcbal submit' is still at work, was ended, or got no answer; if it is in "
        f"the queue, '{SYSTEMS[record.system].queue}' shows it as {record.name!r}"
    )


def jobs_in_queue(records: Sequence[BatchRecord], run: Run | None = None) -> list[JobInQueue]:
    """Return batch jobs with their states; each system is asked for all of its jobs at once.

    A job of another cluster than the one that answers is not asked for: its number may be another's here.

    Args:
        records: the jobs as they were submitted.
        run: runs a command of a scheduler; None: all questions together may take ANSWER_S.
    """
    run = within(ANSWER_S) if run is None else run
    states: dict[tuple[str, str], QueueState] = {}
    problems: dict[str, str] = {}
    clusters: dict[str, str] = {}
    for name in dict.fromkeys(record.system for record in records):
        if name not in SYSTEMS:
            problems[name] = f"this hpcbal knows no batch system {name!r}"
            continue
        own = [record for record in records if record.system == name and record.id]
        try:
            if any(record.cluster for record in own):
                clusters[name] = SYSTEMS[name].cluster(run)
            ids = list(dict.fromkeys(each.id for each in own if not _is_elsewhere(each, clusters)))
            found = SYSTEMS[name].ask(ids, run) if ids else {}
        except ClusterError as error:
            problems[name] = str(error)
        else:
            states |= {(name, job): state for job, state in found.items()}
    jobs = []
    for record in records:
        is_elsewhere = _is_elsewhere(record, clusters)
        state = states.get((record.system, record.id))
        if is_elsewhere:
            here = clusters[record.system]
            problem = f"it is a job of cluster {record.cluster}, and {here} answers here; ask there"
            state = QueueState(Phase.UNKNOWN, problem=problem)
        elif state is None:
            problem = problems.get(record.system) or _doubt(record)
            state = QueueState(Phase.UNKNOWN, problem=problem)
        jobs.append(JobInQueue(record, state, is_elsewhere))
    return jobs


def _is_elsewhere(record: BatchRecord, clusters: Mapping[str, str]) -> bool:
    """Return whether the cluster that answers, by system, is known not to be that of a job."""
    here = clusters.get(record.system)
    return bool(here and record.id and record.cluster) and record.cluster != here


def unsettled_jobs(directory: Path) -> list[BatchRecord]:
    """Return the batch jobs of a run that may wait or run, according to its files, and the last one.

    Raises:
        OutputError: if the file of the jobs is there and cannot be read.
    """
    records = own_jobs(directory)
    # A job submits the one that continues it at its very end, so where that one is continued, it has ended.
    continued = {record.continues for record in records}
    over = {record.continues for record in records if record.id in continued}
    return [
        *(record for record in records[:-1] if not record.is_over and record.id not in over),
        *records[-1:],
    ]


def own_jobs(directory: Path) -> list[BatchRecord]:
    """Return the batch jobs of a run, the last one at the end; a copied directory has none of the original's.

    A job whose number is not known, and that was cancelled, ends when it starts, and counts as over.

    Raises:
        OutputError: if the file of the jobs is there and cannot be read.
    """
    return [
        replace(record, is_over=record.is_over or (not record.id and (directory / record.cancel).exists()))
        for record in read_batch_jobs(directory)
        if original_of(record, directory) is None
    ]


def original_of(record: BatchRecord, directory: Path) -> Path | None:
    """Return the directory to which a job writes, if that is there and not the one that knows the job."""
    if "--output" not in record.words[:-1]:
        return None
    last = max(index for index, word in enumerate(record.words[:-1]) if word == "--output")
    noted = Path(record.directory, record.words[last + 1])
    try:
        return None if not noted.is_dir() or noted.samefile(directory) else noted
    except OSError:
        return None


def shown_jobs(jobs: Sequence[JobInQueue]) -> list[JobInQueue]:
    """Return the jobs that people are to see: the last one, and others that wait or run, or may do so."""
    return [*(job for job in jobs[:-1] if job.may_be_live), *jobs[-1:]]


def line_of(job: JobInQueue, now_s: float) -> str:
    """Describe a job and its state in one line.

    Args:
        job: the job.
        now_s: the time, in seconds of the Unix epoch.
    """
    state = job.state
    match state.phase:
        case Phase.PENDING:
            facts = [f"pending, {state.reason}" if state.reason else "pending"]
            if state.starts_s is not None and state.starts_s > now_s:
                facts.append(f"expected to start at {_moment(state.starts_s)}")
        case Phase.RUNNING:
            facts = [f"running on {state.nodes}" if state.nodes else "running"]
            if state.until_s is not None and state.until_s > now_s:
                left = duration_text(state.until_s - now_s)
                facts.append(f"until {_moment(state.until_s)} ({left} left)")
        case Phase.ENDED:
            facts = [f"ended, {state.word}" if state.word else "ended"]
            if state.reason and state.reason != "NonZeroExitCode":
                facts[0] += f" ({state.reason})"
            if state.exit_code is not None:
                facts.append(f"exit code {state.exit_code}")
            if state.until_s is not None:
                facts.append(f"at {_moment(state.until_s)}")
        case Phase.GONE:
            facts = ["no longer known to the scheduler"]
        case Phase.UNKNOWN if not job.record.id:
            return f"{job.name}: {state.problem}"
        case Phase.UNKNOWN:
            return f"{job.name}: its state is not known: {state.problem}"
    return f"{job.name}: {', '.join(facts)}"


def _moment(unix_s: float) -> str:
    """Return a time of the day here, to the minute."""
    return time.strftime("%Y-%m-%d %H:%M", time.localtime(unix_s))


def values_of(job: JobInQueue) -> dict[str, Any]:
    """Return a job as plain values, for `--json`."""
    state = job.state
    return {
        "system": job.record.system,
        "id": job.record.id,
        "submitted_at": utc_text(job.record.submitted_s),
        "log": job.record.log,
        "max_restarts": job.record.max_restarts,
        "phase": job.phase.value,
        "problem": state.problem,
        "word": state.word,
        "reason": state.reason,
        "starts_at": None if state.starts_s is None else utc_text(state.starts_s),
        "until": None if state.until_s is None else utc_text(state.until_s),
        "exit_code": state.exit_code,
        "nodes": state.nodes,
    }


@dataclass(slots=True)
class QueueWatch:
    """Knows the state of the batch jobs of a run, and asks their scheduler only now and then.

    Attributes:
        directory: output directory of the run.
        interval_s: seconds between two questions.
        run: see `jobs_in_queue`.
        clock: seconds that only grow.
    """

    directory: Path
    interval_s: float = field(default_factory=lambda: INTERVAL_S)
    run: Run | None = None
    clock: Callable[[], float] = time.monotonic
    _jobs: list[JobInQueue] = field(default_factory=list)
    _asked_s: float | None = None

    def jobs(self) -> list[JobInQueue]:
        """Return the jobs that people are to see."""
        now = self.clock()
        if self._asked_s is None or now - self._asked_s >= self.interval_s:
            self._jobs = shown_jobs(jobs_in_queue(unsettled_jobs(self.directory), self.run))
            self._asked_s = now
        return self._jobs
