"""Where jobs go that have not been measured yet ([PS] Sec. 4.3.2, Profiling)."""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterable, Mapping, Sequence

from hpcbal.policies.grouping import JobGroup, JobMemory, MemoryLimit

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
