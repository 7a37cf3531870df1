"""A job that has all ranks for itself: it configures itself, and executors come and go."""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from pathlib import Path

from hpcbal.comm.channel import Message
from hpcbal.config import ParamServerConfig
from hpcbal.errors import HpcbalError
from hpcbal.forecast.prediction import Prediction, predict
from hpcbal.paramserver.machine import messages
from hpcbal.paramserver.machine.events import EpochEnded, Instruction, Reconfigured
from hpcbal.paramserver.machine.job import JobMachine
from hpcbal.planning.throughput import forecast_job
from hpcbal.runtime.jobs.executors import ExecutorSupply, first_owners, without_blocks
from hpcbal.runtime.jobs.job import Job, Owners, Start
from hpcbal.runtime.jobs.master import Master, Placement
from hpcbal.runtime.jobs.record import RecordOfOne
from hpcbal.runtime.jobs.tuning import Tuner, tuner_of

log = logging.getLogger(__name__)


class OneJob(Placement):
    """The placement of a job that has all ranks for itself.

    Args:
        config: the configuration.
        job: it is loaded.
        executors: all ranks but the scheduler's, ascending.
        path: of the file that names executors.

    Attributes:
        in_use: ranks of those that the job may use at the start.
        owners: of its blocks at the start.

    Raises:
        InputError: if the file asks for more executors, or more workers and servers, than there are.
    """

    def __init__(self, config: ParamServerConfig, job: Job, executors: Sequence[int], path: Path) -> None:
        assert job.cut is not None
        self._config, self._job, self._executors = config, job, executors
        self._supply = ExecutorSupply(config, executors, path)
        self.in_use = self._supply.in_use(job.epochs)
        self.owners: Owners = first_owners(config, job.cut, self.in_use, job.saved)
        self._master: Master
        self._record: RecordOfOne
        self._tuner: Tuner

    def begin(self, master: Master, record: RecordOfOne) -> None:
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
        record.note_start(start)
        if (found := forecast_of(config, start.machine)) is not None:
            record.note_forecast(found)
        assert job.loaded is not None
        assert job.cut is not None
        self._tuner = tuner_of(config, start.machine, job.loaded, job.cut, self.in_use)

    def hear(self, start: Start, source: int, report: Message) -> bool:
        match report:
            case messages.TurnDone():
                self._record.note_turn(source, report)
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
                self._record.note_reconfigured(instruction, start.machine)

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
                self._record.note_executors(self._tuner.in_use, self._supply.source)
        change = self._tuner.propose()
        if change is not None:
            self._record.note_moving(change.why, len(change.moves))
            self._master.post(start, change)


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
        job = forecast_job(config, workers, servers)
    except HpcbalError as error:
        log.warning("the throughput cannot be forecast: %s", error)
        return None
    return None if job is None else predict(job)
