"""The policy of Harmony: measure every job, group them by what they need, and group anew when that
changes."""

from __future__ import annotations

import itertools
import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace

from hpcbal.paramserver.sharing.scheduler import Sharing, View
from hpcbal.policies.grouping import (
    Group,
    JobLoad,
    JobMemory,
    MemoryLimit,
    Situation,
    regroup,
    schedule,
)
from hpcbal.policies.grouping.scheduling import FitsTogether

MEASURE_ON = 2
"""Machines on which a job is measured at least: on a single one it has no traffic."""


class Harmony:
    """Groups jobs by [PS] Sec. 4.3.2.

    A job that does not fit beside others waits until it does; no group exceeds the memory of its machines.

    Args:
        min_gain: least gain for which groups change, as a share.
        limit: memory of a machine.
        lookahead: whether jobs with less work left come first. False: those that have come first.
    """

    def __init__(
        self, min_gain: float = 0.05, limit: MemoryLimit | None = None, lookahead: bool = False
    ) -> None:
        self._min_gain, self._lookahead = min_gain, lookahead
        self._limit = limit or MemoryLimit()
        self._has_grouped = False

    def regroup(self, view: View) -> Sequence[Group] | None:
        """See `GroupingPolicy`."""
        known = {job for job, load in view.loads.items() if load.knows_network or view.num_machines == 1}
        unknown = [job for job in view.jobs if job not in known]
        if not view.groups:
            if unknown:
                self._has_grouped = False
                return first_groups(unknown, view.memory, view.num_machines, self._limit)
            return self._all(view, known)
        present = _as_groups(view.groups)
        fresh = [job for job in unknown if job not in view.placed]
        free = view.num_machines - sum(group.machines for group in present)
        measure_on = min(MEASURE_ON, view.num_machines)
        opened = first_groups(fresh, view.memory, free, self._limit) if free >= measure_on else []
        fresh = [job for job in fresh if all(job not in group.jobs for group in opened)]
        idle = [Group((), free)] if free and not opened else []
        joined = _joined(
            [*present, *opened, *idle], fresh, set(unknown), view.memory, self._limit, measure_on
        )
        if joined != present:
            return joined
        if any(job in view.placed for job in unknown):
            return None  # it is being measured
        if not self._has_grouped:
            return self._all(view, known)
        situation = Situation(
            view.num_machines,
            {load.name: load for load in self._loads(view, known)},
            tuple(present),
            self._changed(view, present),
            None if view.left is None else (view.left, view.ended_on),
        )
        return regroup(situation, min_gain=self._min_gain, fits=self._fits)

    def _all(self, view: View, known: Collection[str]) -> Sequence[Group]:
        self._has_grouped = True
        return schedule(self._loads(view, known), view.num_machines, self._fits).groups

    def _loads(self, view: View, known: Collection[str]) -> list[JobLoad]:
        """Of the jobs that have been measured, those to be preferred first."""
        loads = [
            replace(
                view.loads[job],
                least_machines=self._limit.least_machines(view.memory[job], view.num_machines) or 1,
            )
            for job in view.jobs
            if job in known
        ]
        return sorted(loads, key=_work_left_s) if self._lookahead else loads

    @property
    def _fits(self) -> FitsTogether | None:
        limit = self._limit
        if limit.limit_bytes is None:
            return None
        return lambda loads, machines: limit.holds([load.memory for load in loads], machines)

    def _changed(self, view: View, present: Sequence[Group]) -> Group | None:
        """The group of the job that has come or ended."""
        if view.ended is not None:
            return next((g for g in present if set(g.jobs) & set(view.ended_with)), None)
        return next((group for group in present if view.profiled in group.jobs), None)


def _work_left_s(load: JobLoad) -> float:
    """Machine-seconds of computing until the end of a job; infinite if that is not known."""
    return math.inf if load.iterations_left is None else load.iterations_left * load.compute_on(1)


def first_groups(
    jobs: Sequence[str],
    memory: Mapping[str, JobMemory],
    machines: int,
    limit: MemoryLimit | None = None,
) -> list[Group]:
    """Groups in which jobs are measured: as many as possible, so that many jobs run from the beginning.

    Each has two machines at least, if there are two, and holds its jobs. Machines that are left go to the
    smallest groups.

    Args:
        jobs: names, in order of arrival.
        memory: of each job.
        machines: of the run, >= 1.
        limit: memory of a machine; None: jobs need not be held.
    """
    limit = limit or MemoryLimit()
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
            if limit.holds([memory[each] for each in (*group, job)], given[index])
        ]
        if able:
            members[min(able, key=lambda index: len(members[index]))].append(job)
    for _ in range(machines - sum(given) if given else 0):
        given[given.index(min(given))] += 1
    return [Group(tuple(group), count) for group, count in zip(members, given, strict=True)]


def _joined(
    groups: Sequence[Group],
    fresh: Sequence[str],
    unknown: set[str],
    memory: Mapping[str, JobMemory],
    limit: MemoryLimit,
    measure_on: int,
) -> list[Group]:
    """Groups with jobs that are to be measured: where one is measured already, or on the fewest machines.

    Groups of fewer machines than `measure_on` cannot measure a job. If it fits into no other, two groups with
    few jobs, or none, become one. A job that fits nowhere waits.
    """
    joined = list(groups)
    for job in fresh:

        def holds(group: Group, job: str = job) -> bool:
            return limit.holds([memory[each] for each in (*group.jobs, job)], group.machines)

        able = [group for group in joined if group.machines >= measure_on and holds(group)]
        if able:
            best = min(able, key=lambda g: (not unknown & {*g.jobs}, g.machines, len(g.jobs)))
            joined[joined.index(best)] = Group((*best.jobs, job), best.machines)
            continue
        small = sorted((g for g in joined if g.machines < measure_on), key=lambda g: len(g.jobs))
        pair = next((pair for pair in itertools.combinations(small, 2) if holds(_both(*pair))), None)
        if pair is not None:
            merged = _both(*pair)
            joined = [group for group in joined if group not in pair]
            joined.append(Group((*merged.jobs, job), merged.machines))
    return [group for group in joined if group.jobs]


def _both(one: Group, other: Group) -> Group:
    return Group((*one.jobs, *other.jobs), one.machines + other.machines)


def _as_groups(groups: Sequence[Sharing]) -> list[Group]:
    return [Group(group.jobs, len(group.machines)) for group in groups]
