"""Write the files of a run of parameter-server jobs on rank 0, and print its progress."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from hpcbal.cluster.roles import Roles
from hpcbal.errors import LAST_OUTCOMES
from hpcbal.events.history import finite_metrics
from hpcbal.events.line import Line
from hpcbal.kinds import KINDS
from hpcbal.paramserver.master.events import End, EpochEnded, WriteManifest
from hpcbal.planning.calibration import RunKey
from hpcbal.processes import own_stream, say
from hpcbal.runtime.handoff.finished import files_line
from hpcbal.runtime.jobs.job import Job, Start
from hpcbal.runtime.jobs.opening import OpenedJobs
from hpcbal.runtime.record.remembered import (
    expected_startup_s,
    remember_run,
    whole_lines,
    with_prediction,
)
from hpcbal.runtime.record.run_ledger import RunTimeline
from hpcbal.safe_text import printable
from hpcbal.telemetry.files.json_lines import duration_text
from hpcbal.telemetry.ledger.job_lines import (
    JobDoneLine,
    JobEpochLine,
    JobFailedLine,
    JobSavedLine,
    RolesAssignedLine,
    WorkerFacts,
)
from hpcbal.telemetry.ledger.run import NodeFacts, Outcome, RunFinishedLine, RunStartedLine
from hpcbal.telemetry.resources.processes import environment_versions
from hpcbal.telemetry.streams.metrics import MetricsWriter
from hpcbal.telemetry.streams.slices import Slice
from hpcbal.telemetry.views.paramserver_status import PsJobStatus
from hpcbal.telemetry.views.results import ResultRow, render_results, write_results
from hpcbal.telemetry.views.status import end_status, write_status
from hpcbal.telemetry.views.summary import BEST, best_of, summary_of
from hpcbal.telemetry.views.table import key_line, number_text

STATUS_INTERVAL_S = 2.0
DURABLE = (RunStartedLine, RunFinishedLine, RolesAssignedLine, JobDoneLine, JobFailedLine)


class JobsProgress:
    """Prints the progress of a run, and writes no files."""

    def __init__(self) -> None:
        self._began_s = time.monotonic()

    def note(self, text: str) -> None:
        """Print a line of progress."""
        moment = duration_text(time.monotonic() - self._began_s)
        print(printable(f"{moment:>8}  {text}"), file=own_stream("stdout"), flush=True)

    def note_decision(self, began_s: float, seconds: float) -> None:
        """Add to the time that decisions have taken."""

    def note_slices(self, rank: int, slices: Sequence[Slice]) -> None:
        """Add a rank's slices to the timeline."""

    def note_epoch(self, job: Job, ended: EpochEnded) -> None:
        """Record an epoch."""

    def note_saving(self) -> None:
        """Write the epochs that a checkpoint holds; called before it is complete."""

    def note_saved(self, start: Start, manifest: WriteManifest) -> None:
        """Record that a checkpoint is complete."""

    def note_left(self, start: Start, end: End) -> None:
        """Record that a job is about to leave its ranks, at its end or before."""

    def note_over(self, job: Job, end: End) -> None:
        """Record that a job is done, or has failed."""

    def heartbeat(self) -> None:
        """Update files that are due."""

    def finish(self, outcome: Outcome, exit_code: int, suspended: str) -> int:
        """Write the last entries and the results, and show them to users; returns the exit code.

        Args:
            outcome: how the run ends.
            exit_code: the code that follows from `outcome`.
            suspended: why the run stops before its end; empty if it was not asked to.
        """
        return exit_code


class Shown(ABC):
    """Adds to the record of a run what depends on the placement of its jobs.

    Attributes:
        names_jobs: whether lines about a job begin with its name, because there are others.
        has_timeline: whether a timeline of the ranks is written.
        paradigm: how jobs are placed; None: there is only one.
    """

    names_jobs: ClassVar[bool]
    has_timeline: ClassVar[bool]
    paradigm: str | None = None

    @abstractmethod
    def new_status(self, name: str, num_ranks: int, *, heartbeat_s: float) -> Any:
        """Return the status at the start, of the run's kind."""

    @abstractmethod
    def fill(self, status: Any) -> None:
        """Bring what the status says of ranks up to date."""

    def workers_of_epoch(self) -> tuple[WorkerFacts, ...]:
        """Return what workers have done in the epoch that has ended; empty if that is not recorded."""
        return ()

    @abstractmethod
    def left_ranks(self, start: Start, end: End) -> None:
        """Record that a job is about to leave its ranks, at its end or before."""

    @abstractmethod
    def close(self) -> None:
        """Record what is known at the end of the run."""


class Record(JobsProgress):
    """Writes what happens to jobs, and decides nothing; `Shown` adds what depends on their placement.

    Args:
        opened: the run's directory, ledger and jobs.
        roles: the ranks.
        shown: of the placement of the jobs.

    Attributes:
        status: as it is written next.
    """

    def __init__(self, opened: OpenedJobs, roles: Roles, shown: Shown) -> None:
        super().__init__()
        config = opened.config
        self._run, self._lock, self._ledger, self._jobs = opened.run, opened.lock, opened.ledger, opened.jobs
        self._kind_of_run = KINDS[config.kind]
        self._config, self._num_ranks = config, len(roles.executor_ranks)
        self._metrics = MetricsWriter(opened.run)
        self._status_due_s = 0.0
        self._decided_s = 0.0
        self._shown = shown
        self.status = shown.new_status(config.name, len(roles.executor_ranks), heartbeat_s=STATUS_INTERVAL_S)
        self.timeline: RunTimeline | None = None
        if shown.has_timeline:
            self.timeline = RunTimeline(opened.run.timeline, config.timeline.max_bytes)
            self.timeline.name_tracks(roles)
        for job in self._jobs.values():
            if opened.claim.resumed and not job.is_over:
                self._metrics.rewind(job.name, job.epochs, job.history)
        self.append(
            RunStartedLine(
                kind=config.kind,
                name=config.name,
                resumed=opened.claim.resumed,
                nodes=tuple(NodeFacts(node.host, node.num_slots) for node in roles.cluster.nodes),
                num_ranks=len(roles.ranks),
                device="CPU",
                seed=config.seed,
                paradigm=shown.paradigm,
                regroup=False,
                versions=environment_versions(),
                opening_s=time.time() - opened.request.started_s,
                has_changed=opened.claim.resumed and bool(opened.claim.notes),
                computed_by=config.computed_by,
                expected_startup_s=expected_startup_s(config),
            )
        )

    def append(self, line: Line) -> None:
        """Add a line to the ledger."""
        self._ledger.append(line, durable=isinstance(line, DURABLE))

    def note_decision(self, began_s: float, seconds: float) -> None:
        self._decided_s += seconds
        if self.timeline is not None:
            self.timeline.add_decision(began_s, seconds)

    def note_slices(self, rank: int, slices: Sequence[Slice]) -> None:
        if self.timeline is not None:
            self.timeline.add(rank, slices)

    def note_epoch(self, job: Job, ended: EpochEnded) -> None:
        """Record an epoch in the ledger and the metrics, and print its line."""
        assert job.start is not None
        now_s = time.monotonic()
        seconds, job.epoch_began_s = now_s - job.epoch_began_s, now_s
        job.epochs, job.history = ended.epoch, job.start.machine.history
        metrics = dict(ended.record.metrics) if ended.record is not None else {}
        workers = self._shown.workers_of_epoch()
        self.append(JobEpochLine(job.name, ended.epoch, seconds, finite_metrics(metrics), workers))
        if ended.record is not None:
            num_workers = len(workers) or len(job.start.ranks)
            self._metrics.write(job.name, ended.record, {"num_workers": float(num_workers)})
        shown = ", ".join(f"{name} {number_text(value)}" for name, value in metrics.items())
        of = job.config.stop.max_epochs
        said_of = f"{job.name}: " if self._shown.names_jobs else ""
        line = f"{said_of}epoch {ended.epoch}/{of}  {seconds:.2f} s"
        self.note(line + (f"  {shown}" if shown else ""))

    def note_saving(self) -> None:
        self._metrics.flush()  # the history in the checkpoint lacks the number of workers

    def note_saved(self, start: Start, manifest: WriteManifest) -> None:
        job, seconds = start.job, time.monotonic() - start.asked_to_save_s
        self.append(JobSavedLine(job.name, manifest.epoch, manifest.step, seconds, job.wall_s, job.used_s))

    def note_over(self, job: Job, end: End) -> None:
        self.append(
            JobDoneLine(job.name, job.epochs, end.detail)
            if end.outcome == "done"
            else JobFailedLine(job.name, job.epochs, end.cause, end.detail)
        )
        if self._shown.names_jobs:
            how = f"done ({end.detail})" if end.outcome == "done" else f"failed: {end.detail}"
            self.note(f"{job.name}: {how}")

    def note_left(self, start: Start, end: End) -> None:
        self._shown.left_ranks(start, end)

    # ---- status and results --------------------------------------------------------------------

    def heartbeat(self) -> None:
        """Update status.json and the metrics if they are due."""
        if time.monotonic() < self._status_due_s:
            return
        self._lock.check()
        self._ledger.check()
        self._status_due_s = time.monotonic() + STATUS_INTERVAL_S
        self._fill()
        write_status(self._run.status, self.status)
        self._metrics.flush_if_due()
        if self.timeline is not None:
            self.timeline.flush()

    def finish(self, outcome: Outcome, exit_code: int, suspended: str) -> int:
        self._shown.close()
        self._metrics.close()
        if self.timeline is not None:
            self.timeline.close()
        rows = [self._row(job) for job in self._jobs.values()]
        write_results(self._run.results, rows, self._kind_of_run)
        whole = None
        if outcome in LAST_OUTCOMES:
            whole = with_prediction(self._ledger.account.whole(time.time()), self._config, self._num_ranks)
        self.append(
            RunFinishedLine(
                outcome=outcome,
                exit_code=exit_code,
                decided_s=self._decided_s,
                num_preprocessed=0,
                preprocessing_s=0.0,
                whole=whole,
            )
        )
        if whole is not None and outcome == "done":
            remember_run(RunKey.of(self._config), whole, self._ledger.account)
        self._fill()
        end_status(self.status, outcome, exit_code)
        write_status(self._run.status, self.status)
        lines = [render_results(rows, self._kind_of_run), files_line(self._run, self._kind_of_run)]
        if whole is not None:
            lines += whole_lines(whole, self._kind_of_run)
        print(printable("\n".join(["", *lines])), file=own_stream("stdout"), flush=True)
        for job in self._jobs.values():
            if job.cause:
                say(f"hpcbal: {job.name}: {job.detail}")
        if suspended:
            say(f"hpcbal: stopped ({suspended}); run the same command again to resume")
        return exit_code

    def _row(self, job: Job) -> ResultRow:
        metrics = [record.metrics for record in job.history]
        epochs = [record.epoch for record in job.history]
        numbers = summary_of(metrics, epochs, job.main_metric) if metrics else {}
        best_key = f"{BEST}{job.main_metric}" if job.main_metric else f"{BEST}{self._kind_of_run.metric}"
        return ResultRow(
            name=job.name,
            state=job.state if job.is_over else "waiting",
            epochs=job.epochs,
            best=numbers.pop(best_key, None),
            wall_time_s=job.wall_s,
            slot_seconds=job.used_s,
            cause=f"{job.cause}: {key_line(job.detail)}" if job.cause else "",
            numbers=numbers,
            best_key=best_key,
        )

    def _fill(self) -> None:
        starts = [job.start for job in self._jobs.values() if job.start is not None]
        self.status["phase"] = "training" if any(start.has_begun for start in starts) else "starting"
        self.status["jobs"] = [_status_of(job) for job in self._jobs.values()]
        self._shown.fill(self.status)


def _status_of(job: Job) -> PsJobStatus:
    metrics: Sequence[Mapping[str, float]] = [record.metrics for record in job.history]
    main, start = job.main_metric, job.start
    status: PsJobStatus = {
        "name": job.name,
        "state": job.state,
        "epochs": job.epochs,
        "max_epochs": job.config.stop.max_epochs,
        "metrics": finite_metrics(metrics[-1]) if metrics else {},
        "main_metric": main,
        "best": best_of(metrics, main) if main else None,
        "wall_time_s": job.wall_s,
        "slot_seconds": job.used_s,
        "cause": job.cause,
        "detail": job.detail,
    }
    if start is not None and start.spilled:
        status["alpha"], status["spilled_bytes"] = start.alpha, start.spilled_bytes
        status["load_stop_s"] = start.stop_s
    return status
