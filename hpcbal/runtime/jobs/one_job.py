"""A job that has all ranks for itself: it configures itself, and executors come and go."""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from hpcbal.cluster.roles import SCHEDULER_RANK
from hpcbal.comm.channel import Message
from hpcbal.config import ParamServerConfig
from hpcbal.errors import HpcbalError
from hpcbal.forecast.prediction import Prediction, predict
from hpcbal.paramserver.master import messages
from hpcbal.paramserver.master.events import End, EpochEnded, Instruction, Reconfigured
from hpcbal.paramserver.master.job import JobMachine
from hpcbal.planning.throughput import rate_text, traced_job
from hpcbal.runtime.jobs.executors import ExecutorSupply, first_owners, without_blocks
from hpcbal.runtime.jobs.job import Job, Owners, Start
from hpcbal.runtime.jobs.master import JobPlacement, Master
from hpcbal.runtime.jobs.record import Record, Shown
from hpcbal.runtime.jobs.tuning import Tuner, tuner_of
from hpcbal.telemetry.ledger.job_lines import (
    ExecutorsChangedLine,
    ReconfiguredLine,
    RolesAssignedLine,
    ThroughputForecastLine,
    WorkerFacts,
)
from hpcbal.telemetry.streams.slices import mark
from hpcbal.telemetry.views.paramserver_status import ExecutorStatus, new_paramserver_status
from hpcbal.telemetry.views.table import count_text

log = logging.getLogger(__name__)


class OneJob(JobPlacement, Shown):
    """The placement of a job that has all ranks for itself.

    Args:
        config: the configuration.
        job: it is loaded.
        executors: all ranks but the scheduler's, ascending.
        path: of the file that names executors.

    Attributes:
        in_use: ranks of those that the job may use.
        owners: of its blocks at the start.

    Raises:
        InputError: if the file asks for more executors, or more workers and servers, than there are.
    """

    names_jobs = False
    has_timeline = True

    def __init__(self, config: ParamServerConfig, job: Job, executors: Sequence[int], path: Path) -> None:
        assert job.cut is not None
        self._config, self._job, self._executors = config, job, executors
        self._supply = ExecutorSupply(config, executors, path)
        self.in_use = self._supply.in_use(job.epochs)
        self.owners: Owners = first_owners(config, job.cut, self.in_use, job.saved)
        self._master: Master
        self._record: Record
        self._turns: dict[int, WorkerFacts] = {}  # of the epoch so far
        self._reconfiguring_since_s = 0.0
        self._tuner: Tuner

    def begin(self, master: Master, record: Record) -> None:
        """Start the job.

        Raises:
            UserCodeError: if its data cannot be read.
            AppError: if its app or its data return something that they must not.
        """
        job, config = self._job, self._config
        self._master, self._record = master, record
        for note in without_blocks(config, *self.owners):
            record.note(note)
        job.began_s = time.monotonic()
        start = master.start(job, self._executors, self.owners)
        job.use(len(self.in_use))
        self._note_start(start)
        if (found := forecast_of(config, start.machine)) is not None:
            self._note_forecast(found)
        assert job.loaded is not None
        assert job.cut is not None
        self._tuner = tuner_of(config, start.machine, job.loaded, job.cut, self.in_use)

    def hear(self, start: Start, source: int, report: Message) -> bool:
        match report:
            case messages.TurnDone():
                self._note_turn(source, report)
                self._tuner.note_turn(source, report, time.monotonic())
            case messages.ServerReport():
                self._tuner.note_report(source, report)
                return False
        return True

    def performed(self, start: Start, instruction: Instruction) -> None:
        match instruction:
            case EpochEnded():
                self._tuner.note_epoch(time.monotonic())
            case Reconfigured():
                self._tuner.note_change()
                self._note_reconfigured(instruction, start.machine)

    def look(self, now_s: float) -> None:
        """Note executors that were given or taken back, and reconfigure the job if that pays."""
        start = self._job.start
        if start is None:
            return
        if start.machine.phase == "running":  # it is known how far the job is
            has_changed = self._tuner.follow(self._supply.in_use(start.machine.epochs))
            if problem := self._supply.take_problem():
                self._record.note(f"warning: {problem}")
            if has_changed:
                self._job.use(len(self._tuner.in_use))
                self._note_executors(self._tuner.in_use, self._supply.source)
        change = self._tuner.propose()
        if change is not None:
            self._note_moving(change.why, len(change.moves))
            self._master.post(start, change)

    # ---- what is recorded ----------------------------------------------------------------------

    def new_status(self, name: str, num_ranks: int, *, heartbeat_s: float) -> Any:
        return new_paramserver_status(name, num_ranks, heartbeat_s=heartbeat_s)

    def fill(self, status: Any) -> None:
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
                "in_use": executor in self.in_use,
            }
            for i, executor in enumerate(start.ranks)
        ]
        status["executors"] = executors
        status["busy_slots"] = sum(each["role"] != "standby" for each in executors)

    def left_ranks(self, start: Start, end: End) -> None:
        self.fill(self._record.status)  # for the last time

    def _note_start(self, start: Start) -> None:
        """Record who owns what at the start."""
        loaded, machine, pace = start.job.loaded, start.machine, start.machine.spec.pace
        assert loaded is not None
        counts = {what: tuple(_counts(machine, what)) for what in ("data", "parameters")}
        roles, size = _roles(machine), loaded.parameter_bytes
        steps = None if pace.staleness is None else pace.steps_per_epoch
        self._record.append(
            RolesAssignedLine(roles, counts["data"], counts["parameters"], loaded.num_samples, size, steps)
        )
        workers, servers = (sum(role in (name, "both") for role in roles) for name in ("worker", "server"))
        idle = f", {roles.count('standby')} standing by" if "standby" in roles else ""
        self._record.note(
            f"{count_text(workers, 'worker')}, {count_text(servers, 'server')}{idle}; "
            f"{count_text(loaded.num_samples, 'sample')}, {size / 1e6:.1f} MB of parameters"
        )

    def _note_forecast(self, found: Prediction) -> None:
        """Record the throughput that a profile lets expect, for the report."""
        band = found.samples_per_s
        self._record.append(
            ThroughputForecastLine(
                self._job.name, found.num_workers, found.num_servers, band.value, band.low, band.high
            )
        )
        self._record.note(f"forecast: {rate_text(found)}")

    def _note_turn(self, executor: int, turn: messages.TurnDone) -> None:
        """Count a turn of a worker."""
        old = self._turns.get(executor, WorkerFacts(executor, 0, 0, 0.0, 0.0, 0.0, 0))
        self._turns[executor] = WorkerFacts(
            executor,
            old.turns + 1,
            old.samples + turn.samples,
            old.compute_s + turn.compute_s,
            old.pull_s + turn.pull_s,
            old.push_s + turn.push_s,
            old.num_bytes + turn.num_bytes,
        )

    def workers_of_epoch(self) -> tuple[WorkerFacts, ...]:
        turns, self._turns = self._turns, {}
        return tuple(turns[executor] for executor in sorted(turns))

    def _note_moving(self, why: str, num_moves: int) -> None:
        """Record that a reconfiguration begins."""
        self._reconfiguring_since_s = time.monotonic()
        self._record.status["reconfiguring"] = why
        self._record.note(f"reconfiguring: {why} ({count_text(num_moves, 'move')})")

    def _note_reconfigured(self, done: Reconfigured, machine: JobMachine) -> None:
        """Record that a reconfiguration is over, or that the start ends amid it."""
        self._record.status.pop("reconfiguring", None)
        moved = {
            what: sum(len(move.blocks) for move in done.request.moves if move.what == what)
            for what in ("data", "parameters")
        }
        why, roles = done.request.why, _roles(machine)
        seconds = time.monotonic() - self._reconfiguring_since_s
        self._record.append(
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
        assert self._record.timeline is not None
        self._record.timeline.add(SCHEDULER_RANK, [mark(why, {"seconds": seconds, **moved})])
        counts = (count_text(roles.count(role), role) for role in ("worker", "server"))
        self._record.note(f"reconfigured in {seconds:.2f} s: {', '.join(counts)}")

    def _note_executors(self, in_use: Sequence[int], source: str) -> None:
        """Record that the job has been given executors, or that some were taken back."""
        gone = len({*self.in_use} - {*in_use})
        come = len({*in_use} - {*self.in_use})
        self.in_use = tuple(in_use)
        self._record.append(ExecutorsChangedLine(self._job.name, self.in_use, source))
        changes = [f"{come} more"] * (come > 0) + [f"{gone} taken back"] * (gone > 0)
        self._record.note(f"{count_text(len(in_use), 'executor')} ({', '.join(changes)}) by {source}")

    def close(self) -> None:
        self._record.status.pop("reconfiguring", None)


def forecast_of(config: ParamServerConfig, machine: JobMachine) -> Prediction | None:
    """Return the throughput that a profile lets expect of the machine's roles.

    None without a profile, or if some executor is both. A file that is no trace is logged, and does not
    affect the run.
    """
    roles = [machine.role_of(executor) for executor in machine.spec.executors]
    if "both" in roles:
        return None
    workers = [i for i, role in enumerate(roles) if role == "worker"]
    servers = [i for i, role in enumerate(roles) if role == "server"]
    try:
        job = traced_job(config, workers, servers)
    except HpcbalError as error:
        log.warning("the throughput cannot be forecast: %s", error)
        return None
    return None if job is None else predict(job)


def _counts(machine: JobMachine, what: messages.What) -> list[int]:
    """Return the number of blocks of each executor."""
    counts = Counter(machine.owners(what))
    return [counts[executor] for executor in machine.spec.executors]


def _roles(machine: JobMachine) -> tuple[str, ...]:
    return tuple(machine.role_of(executor) for executor in machine.spec.executors)
