"""The policy of Harmony: measure every job, group jobs by what they need, and anew when that changes."""

from __future__ import annotations

import itertools
import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace

from hpcbal.paramserver.coscheduling.scheduler import JobsView
from hpcbal.policies.grouping.groups import JobGroup, JobLoad
from hpcbal.policies.grouping.memory import JobMemory, MemoryLimit
from hpcbal.policies.grouping.regrouping import (
    JOB_GAIN,
    Losses,
    Regrouping,
    Situation,
    filled,
    regroup,
    similar_jobs,
)
from hpcbal.policies.grouping.scheduling import FitsTogether, schedule

MEASURE_ON = 2
"""Machines on which a job is measured at least: on a single one it has no traffic."""

MEASURED_TOGETHER = 4
"""Most jobs that are measured in one group, as long as another group has fewer of them."""

NEW_AT_A_TIME = 2
"""Jobs of the beginning that a group measures at a time if not all of them fit; others are measured in their
place. Three take turns for longer than two and then the third."""


def first_groups(
    jobs: Sequence[str],
    memory: Mapping[str, JobMemory],
    machines: int,
    limit: MemoryLimit | None = None,
    most: int | None = None,
) -> list[JobGroup]:
    """Groups in which jobs are measured: as many as possible, so that many jobs run from the beginning.

    Each has two machines at least, if there are two, and holds its jobs. Machines that are left go to the
    smallest groups.

    Args:
        jobs: names, in order of arrival.
        memory: of each job.
        machines: of the run, >= 1.
        limit: memory of a machine; None: jobs need not be held.
        most: jobs of a group, at most; None: as many as it holds.
    """
    limit, most = limit or MemoryLimit(), most or len(jobs)
    members: list[list[str]] = []
    given: list[int] = []
    for job in jobs:
        least = limit.least_machines(memory[job], machines)
        if least is None:
            continue
        wanted = min(machines, max(MEASURE_ON, least))
        if sum(given) + wanted <= machines:
            members.append([job])
            given.append(wanted)
            continue
        able = [
            index
            for index, group in enumerate(members)
            if len(group) < most and limit.holds([memory[each] for each in (*group, job)], given[index])
        ]
        if able:
            members[min(able, key=lambda index: len(members[index]))].append(job)
    for _ in range(machines - sum(given) if given else 0):
        given[given.index(min(given))] += 1
    return [JobGroup(tuple(group), count) for group, count in zip(members, given, strict=True)]


def measured_instead(
    groups: Sequence[JobGroup],
    waiting: Sequence[str],
    unknown: Collection[str],
    memory: Mapping[str, JobMemory],
    limit: MemoryLimit,
    measure_on: int,
) -> list[JobGroup]:
    """The groups, with jobs that did not fit before in those whose own jobs have all been measured.

    Each takes `NEW_AT_A_TIME` of them at most. Its own jobs go on beside them where memory is left, and wait
    otherwise.

    Args:
        groups: as they are.
        waiting: jobs in no group that are to be measured, in order of arrival.
        unknown: all jobs that have not been measured.
        memory: of every job.
        limit: memory of a machine.
        measure_on: machines on which a job is measured at least.
    """
    found, left = list(groups), list(waiting)

    def with_more(jobs: Sequence[str], more: Iterable[str], machines: int, most: int) -> list[str]:
        """Jobs, and as many others as fit beside them, until there are `most`."""
        members = list(jobs)
        for job in more:
            if len(members) < most and limit.holds([memory[each] for each in (*members, job)], machines):
                members.append(job)
        return members

    for index, group in enumerate(groups):
        if group.machines < measure_on or any(job in unknown for job in group.jobs):
            continue
        new = with_more([], left, group.machines, NEW_AT_A_TIME)
        if new:
            left = [job for job in left if job not in new]
            members = with_more(new, group.jobs, group.machines, len(new) + len(group.jobs))
            found[index] = JobGroup(tuple(members), group.machines)
    return found


def joined(
    groups: Sequence[JobGroup],
    fresh: Sequence[str],
    unknown: Collection[str],
    memory: Mapping[str, JobMemory],
    limit: MemoryLimit,
    measure_on: int,
) -> list[JobGroup]:
    """Groups with jobs that are to be measured: where one is measured already, or on the fewest machines.

    Groups of fewer machines than `measure_on` cannot measure a job. If it fits into no other, two groups with
    few jobs, or none, become one. A job that fits nowhere waits.

    Args:
        groups: as they are; some may have no jobs.
        fresh: jobs in no group, in order of arrival.
        unknown: all jobs that have not been measured.
        memory: of every job.
        limit: memory of a machine.
        measure_on: machines on which a job is measured at least.
    """
    found = list(groups)

    def order(group: JobGroup) -> tuple[bool, bool, int, int]:
        measured = sum(each in unknown for each in group.jobs)
        return measured >= MEASURED_TOGETHER, not measured, group.machines, len(group.jobs)

    for job in fresh:

        def holds(group: JobGroup, job: str = job) -> bool:
            return limit.holds([memory[each] for each in (*group.jobs, job)], group.machines)

        able = [group for group in found if group.machines >= measure_on and holds(group)]
        if able:
            best = min(able, key=order)
            found[found.index(best)] = JobGroup((*best.jobs, job), best.machines)
            continue
        small = sorted((g for g in found if g.machines < measure_on), key=lambda g: len(g.jobs))
        pair = next((pair for pair in itertools.combinations(small, 2) if holds(_both(*pair))), None)
        if pair is not None:
            merged = _both(*pair)
            found = [group for group in found if group not in pair]
            found.append(JobGroup((*merged.jobs, job), merged.machines))
    return [group for group in found if group.jobs]


def _both(one: JobGroup, other: JobGroup) -> JobGroup:
    return JobGroup((*one.jobs, *other.jobs), one.machines + other.machines)


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
