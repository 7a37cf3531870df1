"""Which job runs on which machines: a pure state machine over many jobs.

A policy groups the jobs; this machine brings that about. A job that is to move stops at the end of an
iteration with a checkpoint and starts from it elsewhere, while the other jobs of its group go on ([PS] Sec.
4.3.2). It does not wait until others have left its new machines, if the memory there is enough for all: the
last iterations of those that leave may take minutes.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal, Protocol

from hpcbal.policies.grouping.groups import JobGroup, JobLoad, group_iteration_s
from hpcbal.policies.grouping.memory import JobMemory, MemoryLimit


@dataclass(frozen=True, slots=True)
class Sharing:
    """Jobs that share machines.

    Attributes:
        jobs: names, at least one.
        machines: ranks, ascending, at least one.
    """

    jobs: tuple[str, ...]
    machines: tuple[int, ...]

    def predicted_s(self, loads: Mapping[str, JobLoad]) -> float | None:
        """Seconds of an iteration ([PS] Eq. 4.1); None: a job has not been measured.

        Args:
            loads: of jobs that have been measured, by name.
        """
        known = [loads[job] for job in self.jobs if job in loads]
        count = len(self.machines)
        if len(known) < len(self.jobs) or not all(load.knows_network or count == 1 for load in known):
            return None
        return group_iteration_s(known, count)


def place(
    wanted: Sequence[JobGroup],
    machines: Sequence[int],
    groups: Sequence[Sharing],
    busy_s: Mapping[int, float] | None = None,
) -> tuple[Sharing, ...]:
    """Give groups machines, so that few jobs must move.

    A group gets first the machines of the present group with which it shares most jobs. It keeps all its
    machines if their number is right; one that grows or shrinks moves its jobs anyway, so it takes what is
    left, first what is free soonest.

    Args:
        wanted: the groups, with numbers of machines whose sum is at most that of `machines`.
        machines: ranks.
        groups: where jobs are now.
        busy_s: by machine, seconds until jobs can leave it; none if not said.

    Raises:
        ValueError: there are too few machines.
    """
    if sum(group.machines for group in wanted) > len(machines):
        raise ValueError(f"{sum(g.machines for g in wanted)} machines are wanted of {len(machines)}")
    free, busy = set(machines), busy_s or {}
    soonest_last = sorted(machines, key=lambda rank: (busy.get(rank, 0.0), rank), reverse=True)
    given: dict[int, list[int]] = {}
    pairs = sorted(
        (-len(set(new.jobs) & set(old.jobs)), old.machines, index)
        for index, new in enumerate(wanted)
        for old in groups
        if set(new.jobs) & set(old.jobs) and len(old.machines) == new.machines
    )
    for _, ranks, index in pairs:
        if index not in given and free >= set(ranks):
            given[index] = list(ranks)
            free -= set(ranks)
    for index, new in enumerate(wanted):
        if index in given:
            continue
        near = dict.fromkeys(rank for old in groups if set(old.jobs) & set(new.jobs) for rank in old.machines)
        taken = [rank for rank in near if rank in free][: new.machines]
        while len(taken) < new.machines:
            rank = soonest_last.pop()
            if rank in free and rank not in near:
                taken.append(rank)
        given[index] = taken
        free -= set(taken)
    return tuple(Sharing(new.jobs, tuple(sorted(given[index]))) for index, new in enumerate(wanted))


def without(job: str, groups: Iterable[Sharing]) -> Iterable[Sharing]:
    """Groups without a job; one that has no other job is left out."""
    for group in groups:
        others = tuple(other for other in group.jobs if other != job)
        if others:
            yield replace(group, jobs=others)


JobState = Literal["waiting", "running", "leaving", "over"]
"""State of a job that has arrived: at rest, on machines, about to rest, or done or failed."""


@dataclass(frozen=True, slots=True)
class JobsView:
    """The argument of a policy: jobs, groups and machines of the moment.

    Attributes:
        num_machines: of the run.
        jobs: that have arrived and are not over, in order of arrival.
        loads: of those that have been profiled, as last measured.
        memory: what each of the jobs needs.
        groups: jobs that share machines now, or will as soon as they have moved.
        ended_with: jobs that shared machines with the job whose end asks for this decision.
        ended_on: number of its machines; 0: no job has ended.
        left: its last known load; None: it was not profiled, or no job has ended.
        now_s: time.
    """

    num_machines: int
    jobs: tuple[str, ...]
    loads: Mapping[str, JobLoad]
    memory: Mapping[str, JobMemory]
    groups: tuple[Sharing, ...]
    ended_with: tuple[str, ...] = ()
    ended_on: int = 0
    left: JobLoad | None = None
    now_s: float = 0.0

    @property
    def placed(self) -> frozenset[str]:
        """Jobs that are in a group."""
        return frozenset(job for group in self.groups for job in group.jobs)


class GroupingPolicy(Protocol):
    """Decides who shares machines with whom."""

    @property
    def limit(self) -> MemoryLimit:
        """The memory of a machine, which no group exceeds."""

    @property
    def due_s(self) -> float:
        """Time from which on it wants to decide again, though no job has come, ended or been measured for the
        first time; infinite: never."""

    def regroup(self, view: JobsView) -> Sequence[JobGroup] | None:
        """The groups that jobs are to be in; jobs in none of them wait. None: nothing changes."""


# ---- events ----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Arrived:
    """Jobs have been submitted, in this order.

    Attributes:
        jobs: names.
        memory: what they need; one that is missing needs nothing.
    """

    jobs: tuple[str, ...]
    memory: Mapping[str, JobMemory] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Profiled:
    """A job has been measured, for the first time or again."""

    job: str
    load: JobLoad


@dataclass(frozen=True, slots=True)
class Rested:
    """A job that was told to stop has left its machines, and has a checkpoint."""

    job: str


@dataclass(frozen=True, slots=True)
class Ended:
    """A job is done or has failed, and has left its machines."""

    job: str


Event = Arrived | Profiled | Rested | Ended

# ---- instructions ----------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class StartJob:
    """Start a job on these machines, or let it go on there."""

    job: str
    machines: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class StopJob:
    """Let a job rest after its iteration; answered by `Rested`, or by `Ended` if that was its last one."""

    job: str


@dataclass(frozen=True, slots=True)
class Grouped:
    """The policy has changed who shares machines with whom."""

    groups: tuple[Sharing, ...]
    waiting: tuple[str, ...]


Instruction = StartJob | StopJob | Grouped


@dataclass(slots=True)
class _Job:
    state: JobState = "waiting"
    at: tuple[int, ...] = ()
    load: JobLoad | None = None
    memory: JobMemory = field(default_factory=JobMemory)


@dataclass(slots=True)
class JobScheduler:
    """Places jobs as its policy decides.

    Args:
        machines: ranks.
        policy: groups jobs.

    Attributes:
        groups: as last decided; a group's jobs may still be on their way to it.
    """

    machines: tuple[int, ...]
    policy: GroupingPolicy
    groups: tuple[Sharing, ...] = ()
    _jobs: dict[str, _Job] = field(default_factory=dict)

    def state_of(self, job: str) -> JobState:
        """Return the state of an arrived job."""
        return self._jobs[job].state

    def machines_of(self, job: str) -> tuple[int, ...]:
        """Where a job runs, or what it is about to leave; none while it waits."""
        return self._jobs[job].at

    @property
    def loads(self) -> dict[str, JobLoad]:
        """Loads of the profiled jobs that are not over, by name."""
        return {
            name: job.load for name, job in self._jobs.items() if job.load is not None and job.state != "over"
        }

    @property
    def waiting(self) -> tuple[str, ...]:
        """Jobs in no group, in order of arrival."""
        placed = {job for group in self.groups for job in group.jobs}
        return tuple(name for name, job in self._jobs.items() if job.state != "over" and name not in placed)

    def handle(self, event: Event, now_s: float = 0.0) -> list[Instruction]:
        """Take one event; returns what is to be done, in order.

        Args:
            event: what has happened.
            now_s: seconds since any fixed time, never less than before. Without a clock no time is lost, and
                so `Harmony` makes no change that costs anything after the first groups.

        Raises:
            ValueError: the event cannot happen in this state.
        """
        match event:
            case Arrived(names, memory):
                for name in names:
                    if name in self._jobs:
                        raise ValueError(f"job {name} has arrived before")
                    self._jobs[name] = _Job(memory=memory.get(name, JobMemory()))
                return self._decide(now_s)
            case Profiled(name, load):
                job = self._jobs[name]
                is_new = job.load is None or (load.knows_network and not job.load.knows_network)
                load = replace(load, memory=job.memory)
                job.load = load if job.load is None else _updated(job.load, load)
                is_due = is_new or now_s >= self.policy.due_s
                return self._decide(now_s) if is_due and job.state == "running" else []
            case Rested(name):
                self._expect(name, "leaving")
                self._jobs[name].state, self._jobs[name].at = "waiting", ()
                return self._pursue()
            case Ended(name):
                self._expect(name, "running", "leaving")
                job = self._jobs[name]
                count, group = len(job.at), next((g for g in self.groups if name in g.jobs), None)
                others = () if group is None else tuple(other for other in group.jobs if other != name)
                job.state, job.at = "over", ()
                self.groups = tuple(without(name, self.groups))
                return self._decide(now_s, ended_with=others, ended_on=count, left=job.load)

    def _expect(self, name: str, *states: JobState) -> None:
        if self._jobs[name].state not in states:
            raise ValueError(f"job {name} is {self._jobs[name].state}, not {' or '.join(states)}")

    # ---- decisions -----------------------------------------------------------------------------

    def _decide(
        self,
        now_s: float,
        ended_with: tuple[str, ...] = (),
        ended_on: int = 0,
        left: JobLoad | None = None,
    ) -> list[Instruction]:
        jobs = tuple(name for name, job in self._jobs.items() if job.state != "over")
        memory = {name: self._jobs[name].memory for name in jobs}
        view = JobsView(
            len(self.machines),
            jobs,
            self.loads,
            memory,
            self.groups,
            ended_with,
            ended_on,
            left,
            now_s,
        )
        wanted = self.policy.regroup(view)
        changed: list[Instruction] = []
        if wanted is not None:
            groups = place(wanted, self.machines, self.groups, self._busy_s())
            if {(frozenset(group.jobs), group.machines) for group in groups} != {
                (frozenset(group.jobs), group.machines) for group in self.groups
            }:
                self.groups = groups
                changed.append(Grouped(groups, self.waiting))
        return [*changed, *self._pursue()]

    def _busy_s(self) -> dict[int, float]:
        """By machine, seconds of the longest iteration of its jobs: until then it may not be free."""
        found: dict[int, float] = {}
        for job in self._jobs.values():
            if job.at:
                seconds = math.inf if job.load is None else job.load.iteration_on(len(job.at))
                found |= {rank: max(found.get(rank, 0.0), seconds) for rank in job.at}
        return found

    def _pursue(self) -> list[Instruction]:
        """Stop jobs that are elsewhere than they should be, and start those for which there is room."""
        target = {job: group.machines for group in self.groups for job in group.jobs}
        found: list[Instruction] = []
        for name, job in self._jobs.items():
            if job.state == "running" and job.at != target.get(name, ()):
                job.state = "leaving"
                found.append(StopJob(name))
        being_left = self._being_left(target)
        held: dict[int, float] | None = None
        for name, job in self._jobs.items():
            machines = target.get(name, ())
            if job.state != "waiting" or not machines:
                continue
            if not being_left.isdisjoint(machines):
                held = self._held_bytes() if held is None else held
                if not self._has_room(job.memory, machines, held):
                    continue
            job.state, job.at = "running", machines
            found.append(StartJob(name, machines))
            if held is not None:
                self._hold(job, held)
        return found

    def _being_left(self, target: Mapping[str, tuple[int, ...]]) -> set[int]:
        """Machines with jobs that are about to leave, except where their new groups are formed with them."""
        found: set[int] = set()
        for name, job in self._jobs.items():
            if job.state == "leaving":
                goes_to = target.get(name, ())
                # On fewer machines it takes more memory of each than its group has been formed for.
                stays_on = set(goes_to) if len(goes_to) <= len(job.at) else set()
                found |= set(job.at) - stays_on
        return found

    def _held_bytes(self) -> dict[int, float]:
        """By machine, what all jobs that are there take if none is short of memory."""
        held = dict.fromkeys(self.machines, 0.0)
        for job in self._jobs.values():
            if job.at:
                self._hold(job, held)
        return held

    def _hold(self, job: _Job, held: dict[int, float]) -> None:
        needs_bytes = self.policy.limit.usual_of(job.memory, len(job.at))
        for rank in job.at:
            held[rank] += needs_bytes

    def _has_room(self, memory: JobMemory, machines: Sequence[int], held: Mapping[int, float]) -> bool:
        """Whether one more job fits on machines, with no more samples on disk."""
        limit = self.policy.limit
        needs_bytes = limit.usual_of(memory, len(machines))
        return limit.leaves_reserve(needs_bytes + max(held[rank] for rank in machines))


def _updated(old: JobLoad, new: JobLoad) -> JobLoad:
    """The newest measurement; on one machine nothing of the network is measured, so what was known stays."""
    if new.knows_network or not old.knows_network:
        return new
    return replace(
        old,
        compute_s=new.compute_on(old.machines),
        iterations_left=new.iterations_left,
        saving_s=new.saving_s,
    )
