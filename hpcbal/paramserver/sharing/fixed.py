"""Groups that a user has written down."""

from __future__ import annotations

from collections.abc import Sequence

from hpcbal.paramserver.sharing.scheduler import View
from hpcbal.policies.grouping import Group


class FixedGroups:
    """Keeps given groups until their jobs are over.

    Args:
        groups: at most as many machines together as the run has.
    """

    def __init__(self, groups: Sequence[Group]) -> None:
        self._groups = tuple(groups)

    def regroup(self, view: View) -> Sequence[Group] | None:
        """See `GroupingPolicy`."""
        here = set(view.jobs)
        left = ((tuple(job for job in group.jobs if job in here), group.machines) for group in self._groups)
        return [Group(jobs, machines) for jobs, machines in left if jobs]
