"""The policy of Harmony: measure every job, group them by what they need, and group anew when that
changes."""

from __future__ import annotations

from collections.abc import Sequence

from hpcbal.paramserver.sharing.scheduler import Sharing, View
from hpcbal.policies.grouping import Group, Situation, regroup, schedule

MEASURE_ON = 2
"""Machines on which a job is measured at least: on a single one it has no traffic."""


class Harmony:
    """Groups jobs by [PS] Sec. 4.3.2.

    Args:
        min_gain: least gain for which groups change, as a share.
        move_s: seconds for which a job that moves stands still.
    """

    def __init__(self, min_gain: float = 0.05, move_s: float = 2.0) -> None:
        self._min_gain, self._move_s = min_gain, move_s
        self._has_grouped = False

    def regroup(self, view: View) -> Sequence[Group] | None:
        """See `GroupingPolicy`."""
        known = {job for job, load in view.loads.items() if load.knows_network or view.num_machines == 1}
        unknown = [job for job in view.jobs if job not in known]
        if not view.groups:
            if unknown:
                self._has_grouped = False
                return first_groups(unknown, view.num_machines)
            return self._all(view)
        present = _as_groups(view.groups)
        fresh = [job for job in unknown if job not in view.placed]
        if fresh:
            return _joined(present, fresh, set(unknown))
        if any(job in view.placed for job in unknown):
            return None  # it is being measured
        if not self._has_grouped:
            return self._all(view)
        situation = Situation(
            view.num_machines,
            {job: view.loads[job] for job in view.jobs},
            tuple(present),
            self._changed(view, present),
            None if view.left is None else (view.left, view.ended_on),
        )
        return regroup(situation, min_gain=self._min_gain, move_s=self._move_s)

    def _all(self, view: View) -> Sequence[Group]:
        self._has_grouped = True
        return schedule([view.loads[job] for job in view.jobs], view.num_machines).groups

    def _changed(self, view: View, present: Sequence[Group]) -> Group | None:
        """The group of the job that has come or ended."""
        if view.ended is not None:
            return next((g for g in present if set(g.jobs) & set(view.ended_with)), None)
        return next((group for group in present if view.profiled in group.jobs), None)


def first_groups(jobs: Sequence[str], machines: int) -> list[Group]:
    """Groups in which jobs are measured: as many as possible, so that many jobs run from the beginning.

    Each has two machines at least, if there are two.

    Args:
        jobs: names, at least one.
        machines: of the run, >= 1.
    """
    count = max(1, min(len(jobs), machines // MEASURE_ON))
    return [
        Group(tuple(jobs[index::count]), machines // count + (index < machines % count))
        for index in range(count)
    ]


def _joined(groups: Sequence[Group], fresh: Sequence[str], unknown: set[str]) -> list[Group]:
    """Groups with jobs that are to be measured: where one is measured already, or on the fewest machines."""
    joined = list(groups)
    for job in fresh:
        able = [index for index, group in enumerate(joined) if group.machines >= MEASURE_ON] or list(
            range(len(joined))
        )
        best = min(
            able, key=lambda i: (not unknown & {*joined[i].jobs}, joined[i].machines, len(joined[i].jobs))
        )
        joined[best] = Group((*joined[best].jobs, job), joined[best].machines)
    return joined


def _as_groups(groups: Sequence[Sharing]) -> list[Group]:
    return [Group(group.jobs, len(group.machines)) for group in groups]
