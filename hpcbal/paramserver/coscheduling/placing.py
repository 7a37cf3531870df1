"""Which machines each group of jobs gets."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from hpcbal.policies.grouping.groups import JobGroup, JobLoad, group_iteration_s


@dataclass(frozen=True, slots=True)
class Sharing:
    """Jobs that share machines.

    Attributes:
        jobs: names, at least one.
        machines: ranks, ascending, at least one.
    """

    jobs: tuple[str, ...]
    machines: tuple[int, ...]

    def predicted_s(self, loads: Mapping[str, JobLoad]) -> float | None:
        """Seconds of an iteration ([PS] Eq. 4.1); None: a job has not been measured.

        Args:
            loads: of jobs that have been measured, by name.
        """
        known = [loads[job] for job in self.jobs if job in loads]
        count = len(self.machines)
        if len(known) < len(self.jobs) or not all(load.knows_network or count == 1 for load in known):
            return None
        return group_iteration_s(known, count)


def place(
    wanted: Sequence[JobGroup],
    machines: Sequence[int],
    groups: Sequence[Sharing],
    busy_s: Mapping[int, float] | None = None,
) -> tuple[Sharing, ...]:
    """Give groups machines, so that few jobs must move.

    A group gets first the machines of the present group with which it shares most jobs. It keeps all its
    machines if their number is right; one that grows or shrinks moves its jobs anyway, so it takes what is
    left, first what is free soonest.

    Args:
        wanted: the groups, with numbers of machines whose sum is at most that of `machines`.
        machines: ranks.
        groups: where jobs are now.
        busy_s: by machine, seconds until jobs can leave it; none if not said.

    Raises:
        ValueError: there are too few machines.
    """
    if sum(group.machines for group in wanted) > len(machines):
        raise ValueError(f"{sum(g.machines for g in wanted)} machines are wanted of {len(machines)}")
    free, busy = set(machines), busy_s or {}
    soonest_last = sorted(machines, key=lambda rank: (busy.get(rank, 0.0), rank), reverse=True)
    given: dict[int, list[int]] = {}
    pairs = sorted(
        (-len(set(new.jobs) & set(old.jobs)), old.machines, index)
        for index, new in enumerate(wanted)
        for old in groups
        if set(new.jobs) & set(old.jobs) and len(old.machines) == new.machines
    )
    for _, ranks, index in pairs:
        if index not in given and free >= set(ranks):
            given[index] = list(ranks)
            free -= set(ranks)
    for index, new in enumerate(wanted):
        if index in given:
            continue
        near = dict.fromkeys(rank for old in groups if set(old.jobs) & set(new.jobs) for rank in old.machines)
        taken = [rank for rank in near if rank in free][: new.machines]
        while len(taken) < new.machines:
            rank = soonest_last.pop()
            if rank in free and rank not in near:
                taken.append(rank)
        given[index] = taken
        free -= set(taken)
    return tuple(Sharing(new.jobs, tuple(sorted(given[index]))) for index, new in enumerate(wanted))


def without(job: str, groups: Iterable[Sharing]) -> Iterable[Sharing]:
    """Groups without a job; one that has no other job is left out."""
    for group in groups:
        others = tuple(other for other in group.jobs if other != job)
        if others:
            yield replace(group, jobs=others)
