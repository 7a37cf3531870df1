"""The policy of Harmony: measure every job, group them by what they need, and group anew when that
changes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from hpcbal.paramserver.coscheduling.measuring import (
    MEASURE_ON,
    NEW_AT_A_TIME,
    first_groups,
    joined,
    measured_instead,
)
from hpcbal.paramserver.coscheduling.scheduler import JobsView
from hpcbal.policies.grouping import (
    JobGroup,
    JobLoad,
    MemoryLimit,
    Situation,
    filled,
    regroup,
    schedule,
    similar_jobs,
)
from hpcbal.policies.grouping.regrouping import JOB_GAIN, Losses, Regrouping
from hpcbal.policies.grouping.scheduling import FitsTogether


class Harmony:
    """Groups jobs by [PS] Sec. 4.3.2.

    No group exceeds the memory of its machines. Jobs of the beginning that do not fit beside others are
    measured as soon as all of some group are, in their place; groups are formed when all are known. Later, a
    job that does not fit waits until it does.

    Groups in which a job is being measured hold still, the others change as jobs end. Jobs that arrive
    meanwhile wait: otherwise some job of a group would always be measured.

    Args:
        min_gain: least gain for which groups change, as a share.
        limit: memory of a machine.
    """

    def __init__(self, min_gain: float = 0.05, limit: MemoryLimit | None = None) -> None:
        self._min_gain = min_gain
        self.limit = limit or MemoryLimit()
        self._first: frozenset[str] = frozenset()  # jobs of the beginning
        self._settled: set[str] = set()  # jobs that have been placed by what was measured of them
        self._beside_ended: set[str] = set()  # since groups changed
        self._losses = Losses()
        self._start_s = math.inf  # the shortest start of any job so far

    @property
    def due_s(self) -> float:
        """See `GroupingPolicy`."""
        return self._losses.due_s

    def regroup(self, view: JobsView) -> Sequence[JobGroup] | None:
        """See `GroupingPolicy`."""
        self._losses.add_until(view.now_s)
        self._beside_ended |= set(view.ended_with)
        self._start_s = min([self._start_s, *(load.loading_s for load in view.loads.values())])
        known = _known(view)
        unknown = [job for job in view.jobs if job not in known]
        if not view.groups:
            if unknown:
                self._first = frozenset(unknown)
                return self._first_groups(view, unknown)
            return self._all(view)
        groups = [JobGroup(group.jobs, len(group.machines)) for group in view.groups]
        if self._settled & view.placed:
            groups = self._changed(view, groups, unknown)
        else:
            groups = self._begun(view, groups, unknown)
        return self._measured_next(view, groups, unknown)

    def _first_groups(self, view: JobsView, jobs: Sequence[str]) -> Sequence[JobGroup]:
        """Groups in which jobs of the beginning are measured; if they do not all fit, a few at a time."""
        args = jobs, view.memory, view.num_machines, self.limit
        groups = first_groups(*args)
        return (
            groups
            if sum(len(group.jobs) for group in groups) == len(jobs)
            else first_groups(*args, NEW_AT_A_TIME)
        )

    def _begun(self, view: JobsView, groups: list[JobGroup], unknown: Sequence[str]) -> list[JobGroup]:
        """The groups while jobs of the beginning are measured, and the first ones by what was measured."""
        waiting = [job for job in unknown if job in self._first and job not in view.placed]
        groups = measured_instead(groups, waiting, set(unknown), view.memory, self.limit, _measure_on(view))
        placed = {job for group in groups for job in group.jobs}
        if placed.isdisjoint(unknown):
            return list(self._all(view))
        free = _free(view, groups)
        if not free or not placed.issuperset(waiting):
            return groups
        resting = [job for job in view.jobs if job not in placed and job not in unknown]
        return [*groups, *first_groups(resting, view.memory, free, self.limit)]

    def _all(self, view: JobsView) -> Sequence[JobGroup]:
        """Group all jobs anew."""
        self._settled |= _known(view)
        self._losses.note(Regrouping(due_in_s=0.0))
        self._beside_ended.clear()
        return schedule(self._loads(view), view.num_machines, self._fits, job_gain=JOB_GAIN).groups

    def _measured_next(
        self, view: JobsView, groups: list[JobGroup], unknown: Sequence[str]
    ) -> list[JobGroup]:
        """The groups with jobs that are to be measured: on free machines, or all of them if none is yet."""
        fresh = [job for job in unknown if all(job not in group.jobs for group in groups)]
        free, measure_on = _free(view, groups), _measure_on(view)
        if free >= measure_on:
            groups = [*groups, *first_groups(fresh, view.memory, free, self.limit)]
        placed = {job for group in groups for job in group.jobs}
        if any(job in placed for job in unknown):
            return groups
        free = _free(view, groups)
        idle = [JobGroup((), free)] if free else []
        return joined([*groups, *idle], fresh, set(unknown), view.memory, self.limit, measure_on)

    def _changed(self, view: JobsView, groups: list[JobGroup], unknown: Sequence[str]) -> list[JobGroup]:
        """The groups after a job has ended, or jobs have been measured; those that measure hold still."""
        still = [group for group in groups if set(group.jobs) & set(unknown)]
        held = {job for group in still for job in group.jobs}
        loads = [load for load in self._loads(view) if load.name not in held]
        known = {load.name: load for load in loads}
        groups = [group for group in groups if group not in still]
        groups = self._filled(view, self._settle(groups, loads), loads)
        machines = view.num_machines - sum(group.machines for group in still)
        if not machines or not loads:
            return [*still, *groups]
        situation = Situation(
            machines,
            known,
            tuple(groups),
            frozenset(self._beside_ended),
            self._losses.lost_s,
            self._start_s,
        )
        found = regroup(situation, min_gain=self._min_gain, fits=self._fits)
        self._losses.note(found)
        if found.groups is None:
            return [*still, *groups]
        self._beside_ended.clear()
        return [*still, *found.groups]

    def _settle(self, groups: list[JobGroup], loads: Sequence[JobLoad]) -> list[JobGroup]:
        """Place the jobs that have just been measured; a job that helps nowhere waits."""
        known = {load.name: load for load in loads}
        for load in loads:
            if load.name in self._settled:
                continue
            self._settled.add(load.name)
            own = next((index for index, group in enumerate(groups) if load.name in group.jobs), None)
            if own is None or len(groups[own].jobs) == 1:
                continue
            others = tuple(job for job in groups[own].jobs if job != load.name)
            without = [*groups]
            without[own] = JobGroup(others, groups[own].machines)
            for where in ([own], range(len(groups))):
                found = filled(without, where, [load], known, min_gain=self._min_gain, fits=self._fits)
                if found != tuple(without):
                    break
            groups = list(found)
        return groups

    def _filled(self, view: JobsView, groups: list[JobGroup], loads: Sequence[JobLoad]) -> list[JobGroup]:
        """The group of the job that has ended, with jobs that waited."""
        changed = self._group_of_ended(view, groups)
        if changed is None:
            return groups
        known = {load.name: load for load in loads}
        placed = {job for group in groups for job in group.jobs}
        waiting = [load for load in loads if load.name not in placed]
        index = groups.index(changed)
        if view.left is not None:
            similar = similar_jobs(view.left, view.ended_on, waiting)
            names = (*changed.jobs, *(load.name for load in similar))
            if self._fits is None or self._fits([known[job] for job in names], changed.machines):
                groups[index] = JobGroup(names, changed.machines)
                waiting = [load for load in waiting if load.name not in names]
        return list(filled(groups, [index], waiting, known, min_gain=self._min_gain, fits=self._fits))

    def _loads(self, view: JobsView) -> list[JobLoad]:
        """Return the loads of the measured jobs, those with less work in an iteration first.

        How many iterations they need is not known.
        """
        known = _known(view)
        loads = [
            replace(
                view.loads[job],
                least_machines=self.limit.least_machines(view.memory[job], view.num_machines) or 1,
            )
            for job in view.jobs
            if job in known
        ]
        return sorted(loads, key=_work_s)

    @property
    def _fits(self) -> FitsTogether | None:
        limit = self.limit
        if limit.limit_bytes is None:
            return None
        return lambda loads, machines: limit.holds([load.memory for load in loads], machines)

    def _group_of_ended(self, view: JobsView, groups: Sequence[JobGroup]) -> JobGroup | None:
        """The group that a job has left by its end."""
        return next((group for group in groups if set(group.jobs) & set(view.ended_with)), None)


def _known(view: JobsView) -> set[str]:
    """Jobs that have been measured with their traffic, if there can be any."""
    return {job for job, load in view.loads.items() if load.knows_network or view.num_machines == 1}


def _free(view: JobsView, groups: Sequence[JobGroup]) -> int:
    """Machines of no group."""
    return view.num_machines - sum(group.machines for group in groups)


def _measure_on(view: JobsView) -> int:
    """Machines on which a job is measured at least."""
    return min(MEASURE_ON, view.num_machines)


def _work_s(load: JobLoad) -> float:
    """Machine-seconds of computing in an iteration."""
    return load.compute_on(1)
