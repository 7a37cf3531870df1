"""Groups that nothing measures: written down by a user, drawn at random, or one for each job."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence

from hpcbal.paramserver.coscheduling.scheduler import JobsView
from hpcbal.policies.grouping.groups import JobGroup
from hpcbal.policies.grouping.memory import MemoryLimit


class FixedGroups:
    """Keeps given groups until their jobs are over.

    Jobs that do not fit beside those before them wait until one of these has ended.

    Args:
        groups: at most as many machines together as the run has.
        limit: memory of a machine.
    """

    due_s = math.inf

    def __init__(self, groups: Sequence[JobGroup], limit: MemoryLimit | None = None) -> None:
        self._groups = tuple(groups)
        self.limit = limit or MemoryLimit()

    def regroup(self, view: JobsView) -> Sequence[JobGroup] | None:
        """See `GroupingPolicy`."""
        left = (JobGroup(_admitted(group, view, self.limit), group.machines) for group in self._groups)
        return [group for group in left if group.jobs]


class RandomGroups:
    """Any number of groups with any jobs, and even shares of the machines ([PS] Sec. 4.4.1).

    Groups are drawn for the jobs that are there first. A job that comes later joins any of them. If none of
    the groups is large enough for a job, it waits until all have ended, and groups are drawn anew.

    Args:
        seed: of the draws.
        limit: memory of a machine.
    """

    due_s = math.inf

    def __init__(self, seed: int, limit: MemoryLimit | None = None) -> None:
        self._rng = random.Random(seed)
        self.limit = limit or MemoryLimit()
        self._groups: list[JobGroup] = []

    def regroup(self, view: JobsView) -> Sequence[JobGroup] | None:
        """See `GroupingPolicy`."""
        here = set(view.jobs)
        self._groups = [
            JobGroup(tuple(job for job in group.jobs if job in here), group.machines)
            for group in self._groups
        ]
        if not any(group.jobs for group in self._groups):
            self._groups = self._drawn(view)
        known = {job for group in self._groups for job in group.jobs}
        for job in view.jobs:
            able = [index for index, group in enumerate(self._groups) if self._holds(job, group, view)]
            if job not in known and able:
                index = self._rng.choice(able)
                group = self._groups[index]
                self._groups[index] = JobGroup((*group.jobs, job), group.machines)
        left = (JobGroup(_admitted(group, view, self.limit), group.machines) for group in self._groups)
        return [group for group in left if group.jobs]

    def _drawn(self, view: JobsView) -> list[JobGroup]:
        """New groups, no more than leave every job a group that is large enough for it."""
        if not view.jobs:
            return []
        order = self._rng.sample(view.jobs, len(view.jobs))
        most = self._rng.randint(1, min(len(order), view.num_machines))
        for count in range(most, 0, -1):
            groups = [
                JobGroup(
                    tuple(order[index::count]),
                    view.num_machines // count + (index < view.num_machines % count),
                )
                for index in range(count)
            ]
            if all(self._holds(job, group, view) for group in groups for job in group.jobs):
                return groups
        return [JobGroup(tuple(order), view.num_machines)]

    def _holds(self, job: str, group: JobGroup, view: JobsView) -> bool:
        return self.limit.holds([view.memory[job]], group.machines)


def _admitted(group: JobGroup, view: JobsView, limit: MemoryLimit) -> tuple[str, ...]:
    """The jobs of a group that are here and fit beside each other: those that run, then the first ones."""
    members = [job for job in group.jobs if job in view.memory]
    found: list[str] = []
    for job in sorted(members, key=lambda each: each not in view.placed):
        if limit.holds([view.memory[each] for each in (*found, job)], group.machines):
            found.append(job)
    return tuple(job for job in members if job in found)


class Isolated:
    """Gives jobs machines in order of arrival, until none are left ([PS] Sec. 4.4.1).

    The paper's baseline keeps jobs on few machines, where they compute most of the time. So the machines are
    dealt out evenly to all jobs of the run, also those that come later. One that does not fit into the memory
    of so few gets as many as it needs. A job keeps its number until its end. A job that finds too few free
    machines waits, and those behind it may pass.

    Args:
        limit: memory of a machine.
        num_jobs: of the run, >= 1; None: those that are there first.
    """

    due_s = math.inf

    def __init__(self, limit: MemoryLimit | None = None, num_jobs: int | None = None) -> None:
        self.limit = limit or MemoryLimit()
        self._num_jobs = num_jobs

    def regroup(self, view: JobsView) -> Sequence[JobGroup] | None:
        """See `GroupingPolicy`."""
        if self._num_jobs is None:
            self._num_jobs = len(view.jobs)
        each = max(1, view.num_machines // max(1, self._num_jobs))
        groups = [JobGroup(group.jobs, len(group.machines)) for group in view.groups]
        free = view.num_machines - sum(group.machines for group in groups)
        for job in view.jobs:
            if job in view.placed:
                continue
            least = self.limit.least_machines(view.memory[job], view.num_machines)
            if least is not None and free >= max(least, each):
                groups.append(JobGroup((job,), max(least, each)))
                free -= groups[-1].machines
        return groups
