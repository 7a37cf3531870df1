"""The baseline without sharing: every job has machines of its own."""

from __future__ import annotations

import math
from collections.abc import Sequence

from hpcbal.paramserver.sharing.scheduler import View
from hpcbal.policies.grouping import Group, MemoryLimit


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

    def regroup(self, view: View) -> Sequence[Group] | None:
        """See `GroupingPolicy`."""
        if self._num_jobs is None:
            self._num_jobs = len(view.jobs)
        each = max(1, view.num_machines // max(1, self._num_jobs))
        groups = [Group(group.jobs, len(group.machines)) for group in view.groups]
        free = view.num_machines - sum(group.machines for group in groups)
        for job in view.jobs:
            if job in view.placed:
                continue
            least = self.limit.least_machines(view.memory[job], view.num_machines)
            if least is not None and free >= max(least, each):
                groups.append(Group((job,), max(least, each)))
                free -= groups[-1].machines
        return groups
