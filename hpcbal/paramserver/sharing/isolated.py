"""The baseline without sharing: every job has machines of its own."""

from __future__ import annotations

from collections.abc import Sequence

from hpcbal.paramserver.sharing.scheduler import View
from hpcbal.policies.grouping import Group, MemoryLimit


class Isolated:
    """Gives jobs machines in order of arrival, until none are left ([PS] Sec. 4.4.1).

    The paper's baseline keeps jobs on few machines, where they compute most of the time. So the machines are
    dealt out evenly to the jobs that are there first. One that does not fit into the memory of so few gets as
    many as it needs. A job keeps its number until its end. A job that finds too few free machines waits, and
    those behind it may pass.

    Args:
        limit: memory of a machine.
    """

    def __init__(self, limit: MemoryLimit | None = None) -> None:
        self._limit = limit or MemoryLimit()
        self._each: int | None = None

    def regroup(self, view: View) -> Sequence[Group] | None:
        """See `GroupingPolicy`."""
        if self._each is None:
            self._each = max(1, view.num_machines // max(1, len(view.jobs)))
        groups = [Group(group.jobs, len(group.machines)) for group in view.groups]
        free = view.num_machines - sum(group.machines for group in groups)
        for job in view.jobs:
            if job in view.placed:
                continue
            least = self._limit.least_machines(view.memory[job], view.num_machines)
            if least is not None and free >= max(least, self._each):
                groups.append(Group((job,), max(least, self._each)))
                free -= groups[-1].machines
        return groups
