"""Let jobs that wait join groups that gain; no job moves ([PS] Sec. 4.3.2, Dynamic Job Regrouping)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from hpcbal.policies.grouping.model import worth
from hpcbal.policies.grouping.scheduling import FitsTogether
from hpcbal.policies.grouping.values import Group, JobLoad

LOOKED_AT = 16
"""Of the jobs that wait, as many of the first ones are tried."""


def filled(
    groups: Sequence[Group],
    open_to_jobs: Iterable[int],
    waiting: Sequence[JobLoad],
    loads: Mapping[str, JobLoad],
    *,
    min_gain: float,
    fits: FitsTogether | None = None,
) -> tuple[Group, ...]:
    """The groups, some of them with further jobs.

    [PS] adds a job to the group that brings the use of the machines up most, and lets it wait if none does.
    Jobs that a group hardly needs make the others slower, so its own use must grow by a share. The job that
    brings a group up most joins it first: then few jobs use its machines well. In the order of the queue, one
    job that transfers joined another until their transfers took far longer than computing.

    Args:
        groups: as they are.
        open_to_jobs: indices of those that may gain jobs.
        waiting: jobs in no group, those to be preferred first.
        loads: of all jobs of the groups.
        min_gain: share by which the worth of a group must grow for each job.
        fits: see `schedule`.
    """
    members = [[loads[job] for job in group.jobs] for group in groups]
    worths = [
        worth(jobs, group.machines) if jobs else 0.0 for jobs, group in zip(members, groups, strict=True)
    ]
    allowed, left = list(open_to_jobs), list(waiting[:LOOKED_AT])

    def gain(load: JobLoad, index: int) -> float:
        count, together = groups[index].machines, [*members[index], load]
        if count > (load.most_machines or count) or (fits is not None and not fits(together, count)):
            return 0.0
        return worth(together, count) - worths[index]

    while left and allowed:
        gains = {(i, index): gain(load, index) for i, load in enumerate(left) for index in allowed}
        able = {pair: gained for pair, gained in gains.items() if gained > min_gain * worths[pair[1]]}
        if not able:
            break
        i, index = max(able, key=lambda pair: able[pair])
        members[index].append(left.pop(i))
        worths[index] += able[i, index]
    return tuple(
        Group(tuple(load.name for load in jobs), group.machines)
        for jobs, group in zip(members, groups, strict=True)
    )
