"""The baseline without sharing: every job has machines of its own."""

from __future__ import annotations

from collections.abc import Sequence

from hpcbal.paramserver.sharing.scheduler import View
from hpcbal.policies.grouping import Group


class Isolated:
    """Gives every job the same number of machines, in order of arrival, until none are left ([PS] Sec.
    4.4.1).

    The paper's baseline keeps jobs on few machines, where they compute most of the time. So the machines are
    dealt out evenly to the jobs that are there first, and a job keeps its number until its end.

    Args:
        least: machines of a job at least.
    """

    def __init__(self, least: int = 1) -> None:
        self._least = least
        self._each: int | None = None

    def regroup(self, view: View) -> Sequence[Group] | None:
        """See `GroupingPolicy`."""
        if self._each is None:
            self._each = min(view.num_machines, max(self._least, view.num_machines // max(1, len(view.jobs))))
        groups = [Group(group.jobs, len(group.machines)) for group in view.groups]
        free = view.num_machines - sum(group.machines for group in groups)
        for job in view.jobs:
            if job not in view.placed and free >= self._each:
                groups.append(Group((job,), self._each))
                free -= self._each
        return groups
