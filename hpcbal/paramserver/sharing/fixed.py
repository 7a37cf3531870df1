"""Groups that a user has written down, or that are drawn at random: the baseline without coordination."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence

from hpcbal.paramserver.sharing.scheduler import View
from hpcbal.policies.grouping import Group, MemoryLimit


class FixedGroups:
    """Keeps given groups until their jobs are over.

    Jobs that do not fit beside those before them wait until one of these has ended.

    Args:
        groups: at most as many machines together as the run has.
        limit: memory of a machine.
    """

    due_s = math.inf

    def __init__(self, groups: Sequence[Group], limit: MemoryLimit | None = None) -> None:
        self._groups = tuple(groups)
        self.limit = limit or MemoryLimit()

    def regroup(self, view: View) -> Sequence[Group] | None:
        """See `GroupingPolicy`."""
        left = (Group(_admitted(group, view, self.limit), group.machines) for group in self._groups)
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
        self._groups: list[Group] = []

    def regroup(self, view: View) -> Sequence[Group] | None:
        """See `GroupingPolicy`."""
        here = set(view.jobs)
        self._groups = [
            Group(tuple(job for job in group.jobs if job in here), group.machines) for group in self._groups
        ]
        if not any(group.jobs for group in self._groups):
            self._groups = self._drawn(view)
        known = {job for group in self._groups for job in group.jobs}
        for job in view.jobs:
            able = [index for index, group in enumerate(self._groups) if self._holds(job, group, view)]
            if job not in known and able:
                index = self._rng.choice(able)
                group = self._groups[index]
                self._groups[index] = Group((*group.jobs, job), group.machines)
        left = (Group(_admitted(group, view, self.limit), group.machines) for group in self._groups)
        return [group for group in left if group.jobs]

    def _drawn(self, view: View) -> list[Group]:
        """New groups, no more than leave every job a group that is large enough for it."""
        if not view.jobs:
            return []
        order = self._rng.sample(view.jobs, len(view.jobs))
        most = self._rng.randint(1, min(len(order), view.num_machines))
        for count in range(most, 0, -1):
            groups = [
                Group(
                    tuple(order[index::count]),
                    view.num_machines // count + (index < view.num_machines % count),
                )
                for index in range(count)
            ]
            if all(self._holds(job, group, view) for group in groups for job in group.jobs):
                return groups
        return [Group(tuple(order), view.num_machines)]

    def _holds(self, job: str, group: Group, view: View) -> bool:
        return self.limit.holds([view.memory[job]], group.machines)


def _admitted(group: Group, view: View, limit: MemoryLimit) -> tuple[str, ...]:
    """The jobs of a group that are here and fit beside each other: those that run, then the first ones."""
    members = [job for job in group.jobs if job in view.memory]
    found: list[str] = []
    for job in sorted(members, key=lambda each: each not in view.placed):
        if limit.holds([view.memory[each] for each in (*found, job)], group.machines):
            found.append(job)
    return tuple(job for job in members if job in found)
