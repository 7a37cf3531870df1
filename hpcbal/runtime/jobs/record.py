"""Write the files of a run of parameter-server jobs on rank 0, and print its progress."""

from __future__ import annotations

import math
import statistics
import sys
import time
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from hpcbal.cluster.roles import SCHEDULER_RANK, Roles
from hpcbal.config import ParamServerConfig
from hpcbal.events.line import Line
from hpcbal.forecast.prediction import Prediction
from hpcbal.kinds import KINDS
from hpcbal.paramserver.machine.events import End, EpochEnded, Reconfigured, WriteManifest
from hpcbal.paramserver.machine.job import JobMachine
from hpcbal.paramserver.machine.messages import TurnDone, What
from hpcbal.paramserver.sharing.placing import Sharing, without
from hpcbal.paramserver.sharing.scheduler import Grouped
from hpcbal.planning.throughput import rate_text
from hpcbal.policies.grouping import JobLoad
from hpcbal.printable import printable
from hpcbal.processes import say
from hpcbal.runtime.jobs.groups import GroupTimes
from hpcbal.runtime.jobs.job import Job, Start
from hpcbal.runtime.jobs.messages import MachineLoad
from hpcbal.runtime.jobs.opening import OpenedJobs
from hpcbal.runtime.record.run_ledger import RunTimeline
from hpcbal.telemetry import MetricsWriter, ResultRow, render_results, write_results, write_status
from hpcbal.telemetry.files.json_lines import duration_text
from hpcbal.telemetry.host.processes import environment_versions
from hpcbal.telemetry.ledger import (
    ExecutorsChangedLine,
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
    ReconfiguredLine,
    RolesAssignedLine,
    RunFinishedLine,
    RunStartedLine,
    SharingFacts,
    ThroughputForecastLine,
    WorkerFacts,
)
from hpcbal.telemetry.ledger.run import Outcome
from hpcbal.telemetry.streams.slices import Slice, mark
from hpcbal.telemetry.views.jobs_status import GroupStatus, new_jobs_status
from hpcbal.telemetry.views.paramserver_status import ExecutorStatus, PsJobStatus, new_paramserver_status
from hpcbal.telemetry.views.status import end_status
from hpcbal.telemetry.views.summary import BEST, best_of, summary_of
from hpcbal.telemetry.views.table import count_text, key_line, number_text

STATUS_INTERVAL_S = 2.0
DURABLE = (RunStartedLine, RunFinishedLine, RolesAssignedLine, JobDoneLine, JobFailedLine)


class Progress:
    """Prints the progress of a run, and writes no files."""

    def __init__(self) -> None:
        self._began_s = time.monotonic()

    def note(self, text: str) -> None:
        """Print a line of progress."""
        moment = duration_text(time.monotonic() - self._began_s)
        print(printable(f"{moment:>8}  {text}"), file=sys.stdout, flush=True)

    def note_decision(self, began_s: float, seconds: float) -> None:
        """Add to the time that decisions have taken."""

    def note_slices(self, rank: int, slices: Sequence[Slice]) -> None:
        """Add a rank's slices to the timeline."""

    def note_epoch(self, job: Job, ended: EpochEnded) -> None:
        """Record an epoch."""

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


class Record(Progress, ABC):
    """Writes what happens to jobs, and decides nothing.

    Args:
        opened: the run's directory, ledger and jobs.
        roles: the ranks.
    """

    def __init__(self, opened: OpenedJobs, roles: Roles) -> None:
        super().__init__()
        config = opened.config
        self._run, self._lock, self._ledger, self._jobs = opened.run, opened.lock, opened.ledger, opened.jobs
        self._kind_of_run = KINDS[config.kind]
        self._metrics = MetricsWriter(opened.run)
        self._status_due_s = 0.0
        self._decided_s = 0.0
        self._status = self._new_status(config.name, len(roles.executor_ranks))
        for job in self._jobs.values():
            if opened.claim.resumed and not job.is_over:
                self._metrics.rewind(job.name, job.epochs, job.history)
        self._append(
            RunStartedLine(
                kind=config.kind,
                name=config.name,
                resumed=opened.claim.resumed,
                nodes=tuple(NodeFacts(node.host, node.num_gpus) for node in roles.cluster.nodes),
                num_ranks=len(roles.ranks),
                device="CPU",
                seed=config.seed,
                paradigm=None if isinstance(config, ParamServerConfig) else config.schedule.paradigm,
                regroup=False,
                versions=environment_versions(),
            )
        )

    @abstractmethod
    def _new_status(self, name: str, num_ranks: int) -> Any:
        """Return the status at the start, of the run's kind."""

    @abstractmethod
    def _fill_ranks(self) -> None:
        """Bring what the status says of ranks up to date."""

    def _append(self, line: Line) -> None:
        self._ledger.append(line, durable=isinstance(line, DURABLE))

    def _said_of(self, job: Job) -> str:
        """Return what lines about a job begin with."""
        return f"{job.name}: "

    def _workers_of_epoch(self) -> tuple[WorkerFacts, ...]:
        """Return what workers have done in the epoch that has ended; empty if that is not recorded."""
        return ()

    def note_decision(self, began_s: float, seconds: float) -> None:
        self._decided_s += seconds

    def note_epoch(self, job: Job, ended: EpochEnded) -> None:
        """Record an epoch in the ledger and the metrics, and print its line."""
        assert job.start is not None
        now_s = time.monotonic()
        seconds, job.epoch_began_s = now_s - job.epoch_began_s, now_s
        job.epochs, job.history = ended.epoch, job.start.machine.history
        metrics = dict(ended.record.metrics) if ended.record is not None else {}
        workers = self._workers_of_epoch()
        self._append(JobEpochLine(job.name, ended.epoch, seconds, _finite(metrics), workers))
        if ended.record is not None:
            num_workers = len(workers) or len(job.start.ranks)
            self._metrics.write(job.name, ended.record, {"num_workers": float(num_workers)})
        shown = ", ".join(f"{name} {number_text(value)}" for name, value in metrics.items())
        of = job.config.stop.max_epochs
        line = f"{self._said_of(job)}epoch {ended.epoch}/{of}  {seconds:.2f} s"
        self.note(line + (f"  {shown}" if shown else ""))

    def note_saved(self, start: Start, manifest: WriteManifest) -> None:
        job, seconds = start.job, time.monotonic() - start.asked_to_save_s
        self._append(JobSavedLine(job.name, manifest.epoch, manifest.step, seconds, job.wall_s, job.used_s))

    def note_over(self, job: Job, end: End) -> None:
        self._append(
            JobDoneLine(job.name, job.epochs, end.detail)
            if end.outcome == "done"
            else JobFailedLine(job.name, job.epochs, end.cause, end.detail)
        )

    # ---- status and results --------------------------------------------------------------------

    def heartbeat(self) -> None:
        """Update status.json and the metrics if they are due."""
        if time.monotonic() < self._status_due_s:
            return
        self._lock.check()
        self._ledger.check()
        self._status_due_s = time.monotonic() + STATUS_INTERVAL_S
        self._fill()
        write_status(self._run.status, self._status)
        self._metrics.flush_if_due()

    def finish(self, outcome: Outcome, exit_code: int, suspended: str) -> int:
        self._metrics.close()
        rows = [self._row(job) for job in self._jobs.values()]
        write_results(self._run.results, rows, self._kind_of_run)
        self._append(
            RunFinishedLine(
                outcome=outcome,
                exit_code=exit_code,
                decided_s=self._decided_s,
                num_preprocessed=0,
                preprocessing_s=0.0,
            )
        )
        self._fill()
        end_status(self._status, outcome, exit_code)
        write_status(self._run.status, self._status)
        files = f"files: {self._run.root}/ (results.csv, ledger.jsonl, {self._files_of_jobs()}/, logs/)"
        print(printable(f"\n{render_results(rows, self._kind_of_run)}\n{files}"), file=sys.stdout, flush=True)
        for job in self._jobs.values():
            if job.cause:
                say(f"hpcbal: {job.name}: {job.detail}")
        if suspended:
            say(f"hpcbal: stopped ({suspended}); run the same command again to resume")
        return exit_code

    def _files_of_jobs(self) -> str:
        return self._run.jobs

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
        self._status["phase"] = "training" if any(start.has_begun for start in starts) else "starting"
        self._status["jobs"] = [_status_of(job) for job in self._jobs.values()]
        self._fill_ranks()


class RecordOfOne(Record):
    """Writes what happens to a job that has all ranks for itself, and which of them work and serve.

    Args:
        opened: the run's directory, ledger and its job.
        roles: the ranks.
        in_use: executors that the job may use.
    """

    def __init__(self, opened: OpenedJobs, roles: Roles, in_use: Sequence[int]) -> None:
        (self._job,) = opened.jobs.values()
        self._in_use = tuple(in_use)
        self._turns: dict[int, WorkerFacts] = {}  # of the epoch so far
        self._reconfiguring_since_s = 0.0
        self._timeline = RunTimeline(opened.run.timeline, opened.config.timeline.max_bytes)
        self._timeline.name_tracks(roles)
        super().__init__(opened, roles)

    def _new_status(self, name: str, num_ranks: int) -> Any:
        return new_paramserver_status(name, num_ranks, heartbeat_s=STATUS_INTERVAL_S)

    def _said_of(self, job: Job) -> str:
        return ""

    def _files_of_jobs(self) -> str:
        return f"{self._run.jobs}/{self._job.name}"

    def note_decision(self, began_s: float, seconds: float) -> None:
        super().note_decision(began_s, seconds)
        self._timeline.add_decision(began_s, seconds)

    def note_slices(self, rank: int, slices: Sequence[Slice]) -> None:
        self._timeline.add(rank, slices)

    def note_start(self, start: Start) -> None:
        """Record who owns what at the start."""
        loaded, machine, pace = start.job.loaded, start.machine, start.machine.spec.pace
        assert loaded is not None
        counts = {what: tuple(_counts(machine, what)) for what in ("data", "parameters")}
        roles, size = _roles(machine), loaded.parameter_bytes
        steps = None if pace.staleness is None else pace.steps_per_epoch
        self._append(
            RolesAssignedLine(roles, counts["data"], counts["parameters"], loaded.num_samples, size, steps)
        )
        workers, servers = (sum(role in (name, "both") for role in roles) for name in ("worker", "server"))
        idle = f", {roles.count('standby')} standing by" if "standby" in roles else ""
        self.note(
            f"{count_text(workers, 'worker')}, {count_text(servers, 'server')}{idle}; "
            f"{count_text(loaded.num_samples, 'sample')}, {size / 1e6:.1f} MB of parameters"
        )

    def note_forecast(self, found: Prediction) -> None:
        """Record the throughput that a profile lets expect, for the report."""
        band = found.samples_per_s
        self._append(
            ThroughputForecastLine(
                self._job.name, found.num_workers, found.num_servers, band.value, band.low, band.high
            )
        )
        self.note(f"forecast: {rate_text(found)}")

    def note_turn(self, executor: int, turn: TurnDone) -> None:
        """Count a turn of a worker."""
        old = self._turns.get(executor, WorkerFacts(executor, 0, 0, 0.0, 0.0, 0.0))
        self._turns[executor] = WorkerFacts(
            executor,
            old.turns + 1,
            old.samples + turn.samples,
            old.compute_s + turn.compute_s,
            old.pull_s + turn.pull_s,
            old.push_s + turn.push_s,
            old.num_bytes + turn.num_bytes,
        )

    def _workers_of_epoch(self) -> tuple[WorkerFacts, ...]:
        turns, self._turns = self._turns, {}
        return tuple(turns[executor] for executor in sorted(turns))

    def note_moving(self, why: str, num_moves: int) -> None:
        """Record that a reconfiguration begins."""
        self._reconfiguring_since_s = time.monotonic()
        self._status["reconfiguring"] = why
        self.note(f"reconfiguring: {why} ({count_text(num_moves, 'move')})")

    def note_reconfigured(self, done: Reconfigured, machine: JobMachine) -> None:
        """Record that a reconfiguration is over, or that the start ends amid it."""
        self._status.pop("reconfiguring", None)
        moved = {
            what: sum(len(move.blocks) for move in done.request.moves if move.what == what)
            for what in ("data", "parameters")
        }
        why, roles = done.request.why, _roles(machine)
        seconds = time.monotonic() - self._reconfiguring_since_s
        self._append(
            ReconfiguredLine(
                self._job.name,
                why,
                roles,
                moved["data"],
                moved["parameters"],
                seconds,
                done.request.predicted_gain,
            )
        )
        self._timeline.add(SCHEDULER_RANK, [mark(why, {"seconds": seconds, **moved})])
        counts = (count_text(roles.count(role), role) for role in ("worker", "server"))
        self.note(f"reconfigured in {seconds:.2f} s: {', '.join(counts)}")

    def note_executors(self, in_use: Sequence[int], source: str) -> None:
        """Record that the job has been given executors, or that some were taken back."""
        gone = len({*self._in_use} - {*in_use})
        come = len({*in_use} - {*self._in_use})
        self._in_use = tuple(in_use)
        self._append(ExecutorsChangedLine(self._job.name, self._in_use, source))
        changes = [f"{come} more"] * (come > 0) + [f"{gone} taken back"] * (gone > 0)
        self.note(f"{count_text(len(in_use), 'executor')} ({', '.join(changes)}) by {source}")

    def note_left(self, start: Start, end: End) -> None:
        self._fill_ranks()  # for the last time

    def heartbeat(self) -> None:
        is_due = time.monotonic() >= self._status_due_s
        super().heartbeat()
        if is_due:
            self._timeline.flush()

    def finish(self, outcome: Outcome, exit_code: int, suspended: str) -> int:
        self._timeline.close()
        self._status.pop("reconfiguring", None)
        return super().finish(outcome, exit_code, suspended)

    def _fill_ranks(self) -> None:
        if (start := self._job.start) is None:
            return  # it stays as it was last
        machine = start.machine
        counts = {what: _counts(machine, what) for what in ("data", "parameters")}
        executors: list[ExecutorStatus] = [
            {
                "rank": executor,
                "role": machine.role_of(executor),
                "data_blocks": counts["data"][i],
                "parameter_blocks": counts["parameters"][i],
                "in_use": executor in self._in_use,
            }
            for i, executor in enumerate(start.ranks)
        ]
        self._status["executors"] = executors
        self._status["busy_gpus"] = sum(each["role"] != "standby" for each in executors)


class RecordOfMany(Record):
    """Writes what happens to many jobs, and who shares machines with whom.

    Args:
        opened: the run's directory, ledger and jobs.
        roles: the ranks.
    """

    def __init__(self, opened: OpenedJobs, roles: Roles) -> None:
        self._groups = GroupTimes()
        self._loads: dict[int, MachineLoad] = {}
        super().__init__(opened, roles)
        for name, job in self._jobs.items():
            if name in opened.unrecorded:
                self._append_submitted(job)

    def _new_status(self, name: str, num_ranks: int) -> Any:
        return new_jobs_status(name, num_ranks, heartbeat_s=STATUS_INTERVAL_S)

    @property
    def _running(self) -> dict[str, Start]:
        return {name: job.start for name, job in self._jobs.items() if job.start is not None}

    def note_submitted(self, job: Job) -> None:
        """Record that a job has joined the run."""
        self._append_submitted(job)
        self.note(f"{job.name}: submitted")

    def _append_submitted(self, job: Job) -> None:
        self._append(JobSubmittedLine(job.name, job.config.app, job.arrives_s))

    def note_grouped(self, grouped: Grouped, loads: Mapping[str, JobLoad]) -> None:
        """Record that the scheduler has changed who shares machines with whom."""
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
        """Take over the groups of now; record how long the iterations of the others were."""
        running = self._running
        for group in self._groups.groups:
            measured_s = self._groups.measured_s(group, running)
            if group not in groups and measured_s is not None:
                predicted_s = self._groups.predicted_s(group)
                self._append(GroupMeasuredLine(group.jobs, group.machines, predicted_s, measured_s))
        self._groups.become(groups, loads, running)

    def note_placed(self, start: Start) -> None:
        """Record that a job starts on machines."""
        self._append(JobPlacedLine(start.job.name, start.ranks, start.job.epochs))

    def note_left(self, start: Start, end: End) -> None:
        meter, name = start.meter, start.job.name
        if start.most_spilled_bytes:
            self._append(
                JobSpilledLine(name, start.alpha, start.most_spilled_bytes, start.stop_s, start.read_s)
            )
        if end.outcome == "suspended":
            average = meter.average
            self._append(
                JobRestedLine(
                    name,
                    time.monotonic() - start.asked_to_stop_s,
                    meter.num_measured,
                    None if average is None else average.compute_s,
                    None if average is None else average.network_s,
                    statistics.mean(meter.periods) if meter.periods else None,
                )
            )
            return
        loads = {other: load for other, each in self._running.items() if (load := each.load()) is not None}
        self._groups_become(tuple(without(name, self._groups.groups)), loads)

    def note_over(self, job: Job, end: End) -> None:
        super().note_over(job, end)
        how = f"done ({end.detail})" if end.outcome == "done" else f"failed: {end.detail}"
        self.note(f"{job.name}: {how}")

    def note_load(self, rank: int, load: MachineLoad) -> None:
        """Record how busy a machine has been."""
        self._loads[rank] = load

    def finish(self, outcome: Outcome, exit_code: int, suspended: str) -> int:
        if self._loads:
            ranks = tuple(sorted(self._loads))
            loads = [self._loads[rank] for rank in ranks]
            cpu = tuple(load.cpu_s / load.wall_s for load in loads)
            network = tuple(load.network_s / load.wall_s for load in loads)
            memory = tuple(load.memory_bytes for load in loads)
            resident = tuple(load.resident_bytes for load in loads)
            self._append(MachinesUsedLine(ranks, cpu, network, memory, resident))
        self._groups = GroupTimes()
        return super().finish(outcome, exit_code, suspended)

    def _fill_ranks(self) -> None:
        groups: list[GroupStatus] = [
            {
                "jobs": list(group.jobs),
                "machines": list(group.machines),
                "predicted_s": self._groups.predicted_s(group),
                "measured_s": self._groups.measured_s(group, self._running),
            }
            for group in self._groups.groups
        ]
        self._status["groups"] = groups
        self._status["busy_gpus"] = len({rank for group in groups for rank in group["machines"]})


def _finite(metrics: Mapping[str, float]) -> dict[str, float | None]:
    return {name: value if math.isfinite(value) else None for name, value in metrics.items()}


def _status_of(job: Job) -> PsJobStatus:
    metrics: Sequence[Mapping[str, float]] = [record.metrics for record in job.history]
    main, start = job.main_metric, job.start
    status: PsJobStatus = {
        "name": job.name,
        "state": job.state,
        "epochs": job.epochs,
        "max_epochs": job.config.stop.max_epochs,
        "metrics": _finite(metrics[-1]) if metrics else {},
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


def _counts(machine: JobMachine, what: What) -> list[int]:
    """Return the number of blocks of each executor."""
    counts = Counter(machine.owners(what))
    return [counts[executor] for executor in machine.spec.executors]


def _roles(machine: JobMachine) -> tuple[str, ...]:
    return tuple(machine.role_of(executor) for executor in machine.spec.executors)
