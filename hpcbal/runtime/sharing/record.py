"""Write the files of a run of many parameter-server jobs on rank 0, and print its progress."""

from __future__ import annotations

import math
import statistics
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import cast

from hpcbal.cluster.roles import Roles
from hpcbal.config import SharedJobConfig
from hpcbal.events.line import Line
from hpcbal.paramserver.machine.events import End, EpochEnded, WriteManifest
from hpcbal.paramserver.sharing.placing import Sharing, without
from hpcbal.paramserver.sharing.scheduler import Grouped
from hpcbal.policies.grouping import JobLoad
from hpcbal.printable import printable
from hpcbal.processes import say
from hpcbal.runtime.sharing.group_times import GroupTimes
from hpcbal.runtime.sharing.opening import OpenedJobs
from hpcbal.runtime.sharing.protocol import MachineLoad
from hpcbal.runtime.sharing.running_job import RunningJob
from hpcbal.telemetry import MetricsWriter, ResultRow, render_results, write_results, write_status
from hpcbal.telemetry.files.json_lines import duration_text
from hpcbal.telemetry.host.processes import environment_versions
from hpcbal.telemetry.ledger import (
    GroupMeasuredLine,
    JobDoneLine,
    JobEpochLine,
    JobFailedLine,
    JobPlacedLine,
    JobRestedLine,
    JobSavedLine,
    JobsGroupedLine,
    JobSpilledLine,
    JobSubmittedLine,
    MachinesUsedLine,
    NodeFacts,
    RunFinishedLine,
    RunStartedLine,
    SharingFacts,
)
from hpcbal.telemetry.ledger.run import Outcome
from hpcbal.telemetry.views.jobs_status import GroupStatus, new_jobs_status
from hpcbal.telemetry.views.kinds import JOBS
from hpcbal.telemetry.views.paramserver_status import PsJobStatus
from hpcbal.telemetry.views.status import end_status
from hpcbal.telemetry.views.summary import BEST, best_of, summary_of
from hpcbal.telemetry.views.table import count_text, key_line, number_text
from hpcbal.values import EpochRecord

STATUS_INTERVAL_S = 2.0
DURABLE = (RunStartedLine, RunFinishedLine, JobDoneLine, JobFailedLine)


@dataclass(slots=True)
class _Entry:
    """What is recorded of one job over its starts.

    Attributes:
        state: `waiting`, `training`, `done` or `failed`; `expected` before it has arrived.
        used_s: machine-seconds of the starts that are over.
        began_s: when it arrived in this start of the run.
        earlier_s: wall time in earlier starts of the run.
    """

    config: SharedJobConfig
    state: str = "expected"
    epochs: int = 0
    history: tuple[EpochRecord, ...] = ()
    used_s: float = 0.0
    began_s: float | None = None
    ended_s: float | None = None
    earlier_s: float = 0.0
    cause: str = ""
    detail: str = ""
    epoch_began_s: float = field(default_factory=time.monotonic)

    def wall_time_s(self, now_s: float) -> float:
        if self.began_s is None:
            return self.earlier_s
        return self.earlier_s + (self.ended_s or now_s) - self.began_s

    @property
    def main_metric(self) -> str:
        metrics = self.history[-1].metrics if self.history else {}
        return self.config.stop.monitor or next(iter(metrics), "")


class JobsRecord:
    """Writes what happens and decides nothing.

    Args:
        opened: the run's directory and ledger.
        roles: the ranks.
    """

    def __init__(self, opened: OpenedJobs, roles: Roles) -> None:
        self._run, self._lock, self._ledger = opened.run, opened.lock, opened.ledger
        self._metrics = MetricsWriter(opened.run)
        self._began_s = time.monotonic()
        self._status = new_jobs_status(
            opened.config.name, len(roles.executor_ranks), heartbeat_s=STATUS_INTERVAL_S
        )
        self._status_due_s = 0.0
        self._groups = GroupTimes()
        self._running: dict[str, RunningJob] = {}
        self._loads: dict[int, MachineLoad] = {}
        self._decided_s = 0.0
        self._jobs = {config.name: _Entry(config) for config in opened.config.jobs}
        for name, entry in self._jobs.items():
            self._open(name, entry, opened)
        self._append(
            RunStartedLine(
                kind="jobs",
                name=opened.config.name,
                resumed=opened.claim.resumed,
                nodes=tuple(NodeFacts(node.host, node.num_gpus) for node in roles.cluster.nodes),
                num_ranks=len(roles.ranks),
                device="CPU",
                seed=opened.config.seed,
                paradigm=opened.config.schedule.paradigm,
                regroup=False,
                versions=environment_versions(),
            )
        )
        for config in opened.config.jobs:
            if config.name in opened.unrecorded:
                self._append_submitted(config)

    def _open(self, name: str, entry: _Entry, opened: OpenedJobs) -> None:
        """What earlier starts have left of a job."""
        entry.used_s = opened.used_s.get(name, 0.0)
        saved = opened.saved.get(name)
        if saved is not None:
            entry.history = saved.history
            entry.epochs = saved.history[-1].epoch if saved.history else 0
            entry.earlier_s = sum(record.seconds for record in saved.history)
        over = opened.over.get(name)
        if over is not None:
            entry.epochs = over.epochs
            entry.state = "done" if isinstance(over, JobDoneLine) else "failed"
            entry.cause = over.cause if isinstance(over, JobFailedLine) else ""
            entry.detail = over.detail
        elif opened.claim.resumed:
            self._metrics.rewind(name, entry.epochs, entry.history)

    def _append(self, line: Line) -> None:
        self._ledger.append(line, durable=isinstance(line, DURABLE))

    def note(self, text: str) -> None:
        """Print a line of progress."""
        moment = duration_text(time.monotonic() - self._began_s)
        print(printable(f"{moment:>8}  {text}"), file=sys.stdout, flush=True)

    def note_decision(self, seconds: float) -> None:
        """Add to the time that decisions have taken."""
        self._decided_s += seconds

    # ---- jobs ----------------------------------------------------------------------------------

    def note_submitted(self, config: SharedJobConfig) -> None:
        """A job has joined the run."""
        self._jobs[config.name] = _Entry(config)
        self._append_submitted(config)
        self.note(f"{config.name}: submitted")

    def _append_submitted(self, config: SharedJobConfig) -> None:
        self._append(JobSubmittedLine(config.name, config.app, config.arrives_s))

    def note_arrived(self, name: str) -> None:
        """A job has been submitted."""
        entry = self._jobs[name]
        entry.state, entry.began_s = "waiting", time.monotonic()

    def note_grouped(self, grouped: Grouped, loads: Mapping[str, JobLoad]) -> None:
        """The scheduler has changed who shares machines with whom."""
        self._groups_become(grouped.groups, loads)
        facts = tuple(
            SharingFacts(group.jobs, group.machines, self._groups.predicted_s(group))
            for group in grouped.groups
        )
        self._append(JobsGroupedLine(facts, grouped.waiting))
        parts = [
            f"{' '.join(group.jobs)} on {count_text(len(group.machines), 'machine')}"
            for group in grouped.groups
        ]
        waiting = f"; waiting: {' '.join(grouped.waiting)}" if grouped.waiting else ""
        self.note(f"groups: {'; '.join(parts) or 'none'}{waiting}")

    def _groups_become(self, groups: Sequence[Sharing], loads: Mapping[str, JobLoad]) -> None:
        """Groups are now these; record how long the iterations of the others were."""
        for group in self._groups.groups:
            measured_s = self._groups.measured_s(group, self._running)
            if group not in groups and measured_s is not None:
                predicted_s = self._groups.predicted_s(group)
                self._append(GroupMeasuredLine(group.jobs, group.machines, predicted_s, measured_s))
        self._groups.become(groups, loads, self._running)

    def note_placed(self, job: RunningJob) -> None:
        """A job starts on machines."""
        entry, self._running[job.name] = self._jobs[job.name], job
        entry.state, entry.epoch_began_s = "training", time.monotonic()
        self._append(JobPlacedLine(job.name, job.machines, entry.epochs))

    def note_epoch(self, job: RunningJob, ended: EpochEnded) -> None:
        """Record an epoch in the ledger and the metrics, and print its line."""
        entry, now_s = self._jobs[job.name], time.monotonic()
        seconds, entry.epoch_began_s = now_s - entry.epoch_began_s, now_s
        entry.epochs, entry.history = ended.epoch, job.machine.history
        metrics = dict(ended.record.metrics) if ended.record is not None else {}
        finite = {name: value if math.isfinite(value) else None for name, value in metrics.items()}
        self._append(JobEpochLine(job.name, ended.epoch, seconds, finite))
        if ended.record is not None:
            self._metrics.write(job.name, ended.record, {"num_workers": float(len(job.machines))})
        shown = ", ".join(f"{name} {number_text(value)}" for name, value in metrics.items())
        of = entry.config.stop.max_epochs
        self.note(f"{job.name}: epoch {ended.epoch}/{of}  {seconds:.2f} s" + (f"  {shown}" if shown else ""))

    def note_saved(self, job: RunningJob, manifest: WriteManifest) -> None:
        """A checkpoint is complete."""
        self._append(
            JobSavedLine(job.name, manifest.epoch, manifest.step, time.monotonic() - job.asked_to_save_s)
        )

    def note_left(self, job: RunningJob, end: End) -> None:
        """A job has left its machines, at its end or before."""
        entry, now_s = self._jobs[job.name], time.monotonic()
        entry.used_s += (now_s - job.began_s) * len(job.machines)
        if job.most_spilled_bytes:
            self._append(JobSpilledLine(job.name, job.alpha, job.most_spilled_bytes, job.stop_s, job.read_s))
        average = job.meter.average
        if end.outcome == "suspended":
            del self._running[job.name]
            entry.state = "waiting"
            self._append(
                JobRestedLine(
                    job.name,
                    now_s - job.asked_to_stop_s,
                    job.meter.num_measured,
                    None if average is None else average.compute_s,
                    None if average is None else average.network_s,
                    statistics.mean(job.meter.periods) if job.meter.periods else None,
                )
            )
            return
        entry.epochs, entry.history = job.machine.epochs, job.machine.history
        self.note_over(job.name, end)

    def note_over(self, name: str, end: End) -> None:
        """A job is done, or has failed."""
        loads = {job.name: load for job in self._running.values() if (load := job.load()) is not None}
        self._groups_become(tuple(without(name, self._groups.groups)), loads)
        self._running.pop(name, None)
        entry = self._jobs[name]
        entry.ended_s, entry.cause, entry.detail = time.monotonic(), end.cause, end.detail
        entry.state = end.outcome
        if end.outcome == "done":
            self._append(JobDoneLine(name, entry.epochs, end.detail))
            self.note(f"{name}: done ({end.detail})")
        else:
            self._append(JobFailedLine(name, entry.epochs, end.cause, end.detail))
            self.note(f"{name}: failed: {end.detail}")

    def note_load(self, rank: int, load: MachineLoad) -> None:
        """How busy a machine has been."""
        self._loads[rank] = load

    # ---- status and results --------------------------------------------------------------------

    def heartbeat(self, running: Mapping[str, RunningJob]) -> None:
        """Update status.json and the metrics if they are due."""
        if time.monotonic() < self._status_due_s:
            return
        self._lock.check()
        self._ledger.check()
        self._status_due_s = time.monotonic() + STATUS_INTERVAL_S
        self._fill(running)
        write_status(self._run.status, self._status)
        self._metrics.flush_if_due()

    def finish(self, outcome: str, exit_code: int, suspended: str) -> None:
        """Write the last entries and the results, and show them to users.

        Args:
            outcome: `done`, `failed` or `suspended`.
            exit_code: of the run.
            suspended: why the run stops before its end; empty if it does not.
        """
        self._metrics.close()
        if self._loads:
            ranks = tuple(sorted(self._loads))
            loads = [self._loads[rank] for rank in ranks]
            cpu = tuple(load.cpu_s / load.wall_s for load in loads)
            network = tuple(load.network_s / load.wall_s for load in loads)
            memory = tuple(load.memory_bytes for load in loads)
            resident = tuple(load.resident_bytes for load in loads)
            self._append(MachinesUsedLine(ranks, cpu, network, memory, resident))
        rows = [self._row(name, entry) for name, entry in self._jobs.items()]
        write_results(self._run.results, rows, JOBS)
        self._append(
            RunFinishedLine(
                outcome=cast(Outcome, outcome),
                exit_code=exit_code,
                decided_s=self._decided_s,
                num_preprocessed=0,
                preprocessing_s=0.0,
            )
        )
        self._groups = GroupTimes()
        self._fill({})
        end_status(self._status, outcome, exit_code)
        write_status(self._run.status, self._status)
        files = f"files: {self._run.root}/ (results.csv, ledger.jsonl, {self._run.jobs}/, logs/)"
        print(printable(f"\n{render_results(rows, JOBS)}\n{files}"), file=sys.stdout, flush=True)
        for name, entry in self._jobs.items():
            if entry.state == "failed":
                say(f"hpcbal: {name}: {entry.detail}")
        if suspended:
            say(f"hpcbal: stopped ({suspended}); run the same command again to resume")

    def _row(self, name: str, entry: _Entry) -> ResultRow:
        metrics = [record.metrics for record in entry.history]
        epochs = [record.epoch for record in entry.history]
        numbers = summary_of(metrics, epochs, entry.main_metric) if metrics else {}
        best_key = f"{BEST}{entry.main_metric}" if entry.main_metric else JOBS.main.best_key
        return ResultRow(
            name=name,
            state="waiting" if entry.state in ("training", "expected") else entry.state,
            epochs=entry.epochs,
            best=numbers.pop(best_key, None),
            wall_time_s=entry.wall_time_s(time.monotonic()),
            slot_seconds=entry.used_s,
            cause=f"{entry.cause}: {key_line(entry.detail)}" if entry.cause else "",
            numbers=numbers,
            best_key=best_key,
        )

    def _fill(self, running: Mapping[str, RunningJob]) -> None:
        status = self._status
        status["phase"] = "training" if running else "starting"
        status["jobs"] = [
            self._job_status(name, entry, running.get(name)) for name, entry in self._jobs.items()
        ]
        status["groups"] = [self._group_status(group, running) for group in self._groups.groups]
        status["busy_gpus"] = len({rank for group in self._groups.groups for rank in group.machines})

    def _group_status(self, group: Sharing, running: Mapping[str, RunningJob]) -> GroupStatus:
        return {
            "jobs": list(group.jobs),
            "machines": list(group.machines),
            "predicted_s": self._groups.predicted_s(group),
            "measured_s": self._groups.measured_s(group, running),
        }

    def _job_status(self, name: str, entry: _Entry, job: RunningJob | None) -> PsJobStatus:
        last = entry.history[-1].metrics if entry.history else {}
        main = entry.main_metric
        metrics: Sequence[Mapping[str, float]] = [record.metrics for record in entry.history]
        status: PsJobStatus = {
            "name": name,
            "state": entry.state,
            "epochs": entry.epochs,
            "max_epochs": entry.config.stop.max_epochs,
            "metrics": {key: value if math.isfinite(value) else None for key, value in last.items()},
            "main_metric": main,
            "best": best_of(metrics, main) if main else None,
            "wall_time_s": entry.wall_time_s(time.monotonic()),
            "slot_seconds": entry.used_s,
            "cause": entry.cause,
            "detail": entry.detail,
        }
        if job is not None and job.spilled:
            status["alpha"], status["spilled_bytes"] = job.alpha, job.spilled_bytes
            status["load_stop_s"] = job.stop_s
        return status
