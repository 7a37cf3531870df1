"""Many jobs on the same machines: which of them start, rest and share machines, as the scheduler decides."""

from __future__ import annotations

import statistics
import time
from bisect import insort
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, cast

from hpcbal.comm.channel import Message
from hpcbal.config import JobsConfig, SharedJobConfig
from hpcbal.config.listed import JOBS
from hpcbal.errors import HpcbalError, UserCodeError
from hpcbal.paramserver.coscheduling import scheduler
from hpcbal.paramserver.coscheduling.profiling import note_disturbance
from hpcbal.paramserver.coscheduling.scheduler import JobScheduler, Sharing, without
from hpcbal.paramserver.coscheduling.subtasks import AskForNetwork, NetworkUsed, UseNetwork
from hpcbal.paramserver.coscheduling.synchroniser import Grant, NetworkSynchroniser
from hpcbal.paramserver.master import messages
from hpcbal.paramserver.master.events import End, Instruction, StopRequested
from hpcbal.paramserver.store.layout import dealt_out, dealt_out_by_table
from hpcbal.policies.grouping.groups import JobLoad
from hpcbal.policies.grouping.memory import JobMemory
from hpcbal.runtime.handoff.submissions import (
    SubmissionWatch,
    append_import_roots,
    submissions_of,
)
from hpcbal.runtime.jobs.background import Decisions, Loader, SchedulingDecision
from hpcbal.runtime.jobs.groups import FormedGroups, check_fits
from hpcbal.runtime.jobs.job import Job, Start
from hpcbal.runtime.jobs.loading import Cut, LoadedJob, load_job
from hpcbal.runtime.jobs.master import JobPlacement, Master
from hpcbal.runtime.jobs.messages import MachineLoad
from hpcbal.runtime.jobs.needs import Needs, needs_of
from hpcbal.runtime.jobs.record import Record, Shown
from hpcbal.telemetry.files.run_directory import RunDirectory
from hpcbal.telemetry.ledger.job_lines import (
    GroupMeasuredLine,
    JobPlacedLine,
    JobRestedLine,
    JobsGroupedLine,
    JobSpilledLine,
    JobSubmittedLine,
    MachinesBusyLine,
    MachinesUsedLine,
    SharingFacts,
)
from hpcbal.telemetry.views.paramserver_status import GroupStatus, new_jobs_status
from hpcbal.telemetry.views.table import count_text

LOOK_INTERVAL_S = 1.0
"""Between looks for jobs that have been submitted."""

BUSY_INTERVAL_S = 5.0
"""The least time between two records of how busy the machines were."""

BUSY_SHARE = 0.02
"""And so much of the time that this start has taken: a day gives 300 of them."""

SWITCH_INTERVAL_S = 5e-4
"""How long a thread that computes in Python keeps the one waiting that serves all jobs: that of a machine
while apps compute, and the master's while the scheduler decides."""


class Coscheduling(JobPlacement, Shown):
    """The placement of many jobs, which come, share machines, move between them and end.

    Args:
        config: the configuration.
        run: the run's directory.
        num_machines: ranks of the run, without the scheduler.
        jobs: places jobs on machines.
        unrecorded: names of submitted jobs that the ledger does not mention yet.
    """

    names_jobs = True
    has_timeline = False

    def __init__(
        self,
        config: JobsConfig,
        run: RunDirectory,
        num_machines: int,
        jobs: JobScheduler,
        unrecorded: Collection[str],
    ) -> None:
        self.paradigm = config.schedule.paradigm
        self._config, self._run, self._num_machines = config, run, num_machines
        self._unrecorded = unrecorded
        self._decisions = Decisions(jobs)
        self._look_due_s = 0.0
        self._import_roots: tuple[str, ...] = ()
        self._network = NetworkSynchroniser()
        self._groups = FormedGroups()
        self._loads: dict[int, MachineLoad] = {}
        self._recorded: dict[int, MachineLoad] = {}  # as of the last `machines-busy`
        self._began_s = time.monotonic()
        self._busy_due_s = self._began_s + BUSY_INTERVAL_S
        self._master: Master
        self._record: Record

    def begin(self, master: Master, record: Record) -> None:
        """Expect the jobs of the run, and record those that were submitted to an earlier start."""
        self._master, self._record = master, record
        self._submissions = SubmissionWatch(self._run, JOBS, master.jobs)
        earlier = (root for each in submissions_of(self._run, JOBS) for root in each.import_roots)
        self._import_roots = tuple(dict.fromkeys(earlier))
        self._loader = Loader(self._open, record.note)
        self._expected = sorted(
            (job.arrives_s, index, name)
            for index, (name, job) in enumerate(master.jobs.items())
            if not job.is_over
        )
        self._num_left = len(self._expected)
        for name, job in master.jobs.items():
            if name in self._unrecorded:
                self._append_submitted(job)

    @property
    def expects_more(self) -> bool:
        return bool(self._num_left) or self._look_for_submissions()

    def end(self) -> None:
        self._decisions.close()

    # ---- what ranks report ---------------------------------------------------------------------

    def hear(self, start: Start, source: int, report: Message) -> bool:
        name = start.job.name
        match report:
            case messages.ServerReport():
                return False
            case AskForNetwork(step):
                self._grant(self._network.ask(name, source, step))
                return False
            case NetworkUsed():
                goes_on = start.end is None and start.machine.is_amid_step
                self._grant(self._network.used(name, source, time.monotonic(), goes_on=goes_on))
                return False
            case messages.TurnDone(step=step, samples=0):
                self._grant(self._network.idle(name, source, step))
            case messages.Failed():
                self._grant(self._network.let_go(name))
        if isinstance(report, messages.TurnDone):
            note_disturbance(start, self._master.running.values(), time.monotonic())
            if start.note_turn(source, report):
                self._measured(start)
        return True

    def take(self, source: int, message: Message) -> None:
        if not isinstance(message, MachineLoad):
            super().take(source, message)
            return
        self._loads[source] = message
        numbers = {start.number: start for start in self._master.running.values()} if message.spilled else {}
        for spilled in message.spilled:
            if (start := numbers.get(spilled.start)) is not None:
                start.note_spilled(source, spilled)

    def event_comes(self, start: Start) -> None:
        note_disturbance(start, self._master.running.values(), time.monotonic())

    def performed(self, start: Start, instruction: Instruction) -> None:
        if isinstance(instruction, End):
            self._grant(self._network.remove(start.job.name))

    def end_of(self, end: End) -> End:
        """Return how a job ends: other jobs go on, so it has failed, whatever was in its way."""
        return end if end.exit_code is None else replace(end, outcome="failed", exit_code=None)

    def _grant(self, grants: Iterable[Grant]) -> None:
        """Let workers begin that have waited for the network."""
        for name, workers in grants:
            self._master.tell(self._master.running[name], UseNetwork(), workers)

    def _measured(self, start: Start) -> None:
        """Report to the scheduler what a job needs: once it is measured, and after each further iteration."""
        if start.meter.suffices(self._config.schedule.profile_iterations) and start.end is None:
            load = start.load()
            if load is not None:
                self._ask(scheduler.Profiled(start.job.name, load))

    # ---- jobs that come ------------------------------------------------------------------------

    def look(self, now_s: float) -> None:
        """Let those begin that wait for the network, and let jobs join that have come or are loaded."""
        self._grant(self._network.release(now_s))
        if now_s >= self._look_due_s:
            self._look_for_submissions()
        if now_s >= self._busy_due_s:
            self._note_busy()
            self._busy_due_s = now_s + max(BUSY_INTERVAL_S, BUSY_SHARE * (now_s - self._began_s))
        if self._master.stop_reason is None:
            self._look_at_arrivals(now_s)

    def _look_for_submissions(self) -> bool:
        """Let jobs join the run that have been submitted; returns whether there are any."""
        if self._master.stop_reason is not None:
            return False  # the next start finds them
        self._look_due_s = time.monotonic() + LOOK_INTERVAL_S
        submissions, problems = self._submissions.look()
        for problem in problems:
            self._record.note(problem)
        for submission in submissions:
            append_import_roots(submission.import_roots)
            self._import_roots = tuple(dict.fromkeys((*self._import_roots, *submission.import_roots)))
        configs = [cast("SharedJobConfig", item) for each in submissions for item in each.items]
        for config in configs:
            job = self._master.jobs[config.name] = Job(config, self._config.seed_of(config))
            self._append_submitted(job)
            self._record.note(f"{job.name}: submitted")
            insort(self._expected, (job.arrives_s, len(self._master.jobs), job.name))
        self._num_left += len(configs)
        return bool(configs)

    def _look_at_arrivals(self, now_s: float) -> None:
        """Load what has arrived, and let the scheduler place what is loaded."""
        while self._expected and self._expected[0][0] <= now_s - self._began_s:
            job = self._master.jobs[self._expected.pop(0)[2]]
            job.state, job.began_s = "waiting", time.monotonic()
            self._loader.add(job.name)
        arrived: dict[str, JobMemory] = {}
        for name, future in self._loader.take().items():
            job = self._master.jobs[name]
            try:
                job.loaded, job.cut, job.needs = future.result()
                check_fits(self._config, name, job.needs.memory, self._num_machines)
                arrived[name] = job.needs.memory
            except HpcbalError as error:
                end = End("failed", "app" if isinstance(error, UserCodeError) else "error", str(error))
                job.leave(end)
                self._master.over(job, end)
                self._num_left -= 1
        if arrived:
            self._ask(scheduler.Arrived(tuple(arrived), arrived))

    def _open(self, name: str) -> tuple[LoadedJob, Cut, Needs]:
        """Open a job that has arrived; in a thread of the loader."""
        job = self._master.jobs[name]
        loaded = load_job(job.config)
        cut = job.cut_of(loaded, self._num_machines, self._run)
        return loaded, cut, needs_of(loaded, job.config, cut, job.seed)

    # ---- the scheduler -------------------------------------------------------------------------

    def left(self, job: Job) -> None:
        self._num_left -= job.is_over
        self._ask(scheduler.Ended(job.name) if job.is_over else scheduler.Rested(job.name))

    def _ask(self, event: scheduler.Event) -> None:
        if self._master.stop_reason is None:
            self._decisions.ask(event)

    def follow(self) -> bool:
        decision = self._decisions.take()
        if decision is not None:
            self._perform(decision)
        return decision is not None

    def _perform(self, decision: SchedulingDecision) -> None:
        self._record.note_decision(time.monotonic(), decision.seconds)
        if self._master.stop_reason is not None:
            return
        for instruction in decision.instructions:
            match instruction:
                case scheduler.Grouped():
                    self._note_grouped(instruction, decision.loads)
                case scheduler.StartJob(name, machines):
                    self._start(self._master.jobs[name], machines)
                case scheduler.StopJob(name):
                    if name in self._master.running:  # it may have ended meanwhile
                        moves = StopRequested("moves to other machines", gives_up_objective=False)
                        self._master.stop_job(self._master.running[name], moves)

    def _start(self, job: Job, machines: tuple[int, ...]) -> None:
        """Start a job with even shares of samples and parameters on every machine."""
        assert job.cut is not None
        owners = dealt_out(job.cut.data, machines), dealt_out_by_table(job.cut.parameters, machines)
        start = self._master.start(job, machines, owners, self._import_roots, self._config.schedule.warm_up)
        self._network.add(job.name, start.workers, machines)
        self._record.append(JobPlacedLine(job.name, start.ranks, job.epochs))

    # ---- what is recorded ----------------------------------------------------------------------

    def new_status(self, name: str, num_ranks: int, *, heartbeat_s: float) -> Any:
        return new_jobs_status(name, num_ranks, heartbeat_s=heartbeat_s)

    @property
    def _starts(self) -> dict[str, Start]:
        """Of jobs that have not left their ranks."""
        return {name: job.start for name, job in self._master.jobs.items() if job.start is not None}

    def fill(self, status: Any) -> None:
        groups: list[GroupStatus] = [
            {
                "jobs": list(group.jobs),
                "machines": list(group.machines),
                "predicted_s": self._groups.predicted_s(group),
                "measured_s": self._groups.measured_s(group, self._starts),
            }
            for group in self._groups.groups
        ]
        status["groups"] = groups
        status["busy_slots"] = len({rank for group in groups for rank in group["machines"]})

    def left_ranks(self, start: Start, end: End) -> None:
        meter, name = start.meter, start.job.name
        if start.most_spilled_bytes:
            self._record.append(
                JobSpilledLine(name, start.alpha, start.most_spilled_bytes, start.stop_s, start.read_s)
            )
        if end.outcome == "suspended":
            average = meter.average
            self._record.append(
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
        loads = {other: load for other, each in self._starts.items() if (load := each.load()) is not None}
        self._groups_become(tuple(without(name, self._groups.groups)), loads)

    def _append_submitted(self, job: Job) -> None:
        self._record.append(JobSubmittedLine(job.name, job.config.app, job.arrives_s))

    def _note_grouped(self, grouped: scheduler.Grouped, loads: Mapping[str, JobLoad]) -> None:
        """Record that the scheduler has changed who shares machines with whom."""
        self._groups_become(grouped.groups, loads)
        facts = tuple(
            SharingFacts(group.jobs, group.machines, self._groups.predicted_s(group))
            for group in grouped.groups
        )
        self._record.append(JobsGroupedLine(facts, grouped.waiting))
        parts = [
            f"{' '.join(group.jobs)} on {count_text(len(group.machines), 'machine')}"
            for group in grouped.groups
        ]
        waiting = f"; waiting: {' '.join(grouped.waiting)}" if grouped.waiting else ""
        self._record.note(f"groups: {'; '.join(parts) or 'none'}{waiting}")

    def _groups_become(self, groups: Sequence[Sharing], loads: Mapping[str, JobLoad]) -> None:
        """Take over the groups of now; record how long the iterations of the others were."""
        running = self._starts
        for group in self._groups.groups:
            measured_s = self._groups.measured_s(group, running)
            if group not in groups and measured_s is not None:
                predicted_s = self._groups.predicted_s(group)
                self._record.append(GroupMeasuredLine(group.jobs, group.machines, predicted_s, measured_s))
        self._groups.become(groups, loads, running)

    def _note_busy(self) -> None:
        """Record how busy the machines were since the last record."""
        late = {rank: load.since(self._recorded.get(rank)) for rank, load in sorted(self._loads.items())}
        late = {rank: load for rank, load in late.items() if load.wall_s > 0.0}
        if late:
            seconds = tuple(load.wall_s for load in late.values())
            cpu = tuple(min(1.0, load.cpu_s / load.wall_s) for load in late.values())
            network = tuple(min(1.0, load.network_s / load.wall_s) for load in late.values())
            self._record.append(MachinesBusyLine(tuple(late), seconds, cpu, network))
            self._recorded = dict(self._loads)

    def close(self) -> None:
        self._note_busy()
        if self._loads:
            ranks = tuple(sorted(self._loads))
            loads = [self._loads[rank] for rank in ranks]
            cpu = tuple(load.cpu_s / load.wall_s for load in loads)
            network = tuple(load.network_s / load.wall_s for load in loads)
            memory = tuple(load.memory_bytes for load in loads)
            resident = tuple(load.resident_bytes for load in loads)
            self._record.append(MachinesUsedLine(ranks, cpu, network, memory, resident))
        self._groups = FormedGroups()
