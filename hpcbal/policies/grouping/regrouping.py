"""Change groups when a job has come or ended, moving few jobs ([PS] Sec. 4.3.2, Dynamic Job Regrouping).

How the paper is read here (docs/adr/0021):

- A job is similar to another one if its iteration, and the computing in it, differ by at most `SIMILAR` of
  the other's iteration. A bunch of jobs is similar by its sums.
- Combinations of groups are not all tried: groups take part from the one with fewest jobs to the one with
  most, twice as many each time, beside the one that the change concerns.
- What moving costs is weighed against what is left, which the paper leaves to future work: what the new
  groups gain until the next job ends must exceed `PAYS` times what moving costs.
- No job that runs is left to wait: it would be missing when the others have ended, and fewer jobs would have
  to use all machines.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from hpcbal.policies.grouping.model import group_iteration_s, score
from hpcbal.policies.grouping.scheduling import FitsTogether, schedule
from hpcbal.policies.grouping.values import Group, JobLoad

SIMILAR = 0.05
JOB_GAIN = 0.01
"""By so much a further job must raise the score of a grouping, see `schedule`."""

PAYS = 8.0
"""A change must gain so many times what it costs."""

BUNCH = 3
"""Most jobs that take the place of one."""


@dataclass(frozen=True, slots=True)
class Situation:
    """What there is to group.

    Attributes:
        machines: of the run.
        loads: of all jobs that run or wait, by name; those that wait in order of arrival.
        groups: as they are, without a job that has ended.
        changed: the group that a job has come to, or that it has left; None: no group concerns the change, or
            it has no jobs any more.
    """

    machines: int
    loads: Mapping[str, JobLoad]
    groups: tuple[Group, ...]
    changed: Group | None = None


def regroup(now: Situation, *, min_gain: float, fits: FitsTogether | None = None) -> tuple[Group, ...] | None:
    """The groups that are worth a change; None: none are.

    Args:
        now: what there is. min_gain: the score must grow by this share, and by as much again for each further
        group that takes part. fits: see `schedule`.
    """
    base = score(now.groups, now.loads, now.machines)
    best: tuple[float, tuple[Group, ...]] | None = None
    for groups in _options(now, fits):
        value = score(groups, now.loads, now.machines)
        if value > (base if best is None else best[0]) * (1 + min_gain):
            best = value, groups
    if best is None:
        return None
    value, groups = best
    gain_s = (value - base) / value * _until_next_end_s(now)
    cost_s = _standing_still_s(now.groups, groups, now.loads) / now.machines
    return groups if gain_s > PAYS * cost_s else None


def _options(now: Situation, fits: FitsTogether | None) -> Iterator[tuple[Group, ...]]:
    """Other groups, those first for which fewer jobs move."""
    others = sorted(
        (group for group in now.groups if group != now.changed), key=lambda group: len(group.jobs)
    )
    for count in _participants(len(others)):
        kept = others[count:]
        machines = now.machines - sum(group.machines for group in kept)
        if not machines:
            continue
        in_kept = {job for group in kept for job in group.jobs}
        running = {job for group in now.groups for job in group.jobs}
        pool = [load for name, load in now.loads.items() if name not in in_kept]
        pool.sort(key=lambda load: load.name not in running)  # those that run come first
        found = schedule(pool, machines, fits, job_gain=JOB_GAIN)
        if running <= in_kept | {job for group in found.groups for job in group.jobs}:
            yield (*kept, *found.groups)


def _participants(num_groups: int) -> list[int]:
    """How many further groups take part: none, one, two, four, ..., all."""
    counts = [0]
    while counts[-1] < num_groups:
        counts.append(min(num_groups, max(1, 2 * counts[-1])))
    return counts


def similar_jobs(ended: JobLoad, machines: int, waiting: Sequence[JobLoad]) -> list[JobLoad]:
    """A job that waits, or a few of them, that would use machines as the ended one did; empty: there are
    none."""
    iteration, compute = ended.iteration_on(machines), ended.compute_on(machines)

    def is_similar(loads: Sequence[JobLoad]) -> bool:
        whole = sum(load.iteration_on(machines) for load in loads)
        computing = sum(load.compute_on(machines) for load in loads)
        return max(abs(whole - iteration), abs(computing - compute)) <= SIMILAR * iteration

    for load in waiting:
        if is_similar([load]):
            return [load]
    # A bunch: the longest jobs that fit, as long as they fit.
    bunch: list[JobLoad] = []
    for load in sorted(waiting, key=lambda each: -each.iteration_on(machines)):
        so_far = sum(each.iteration_on(machines) for each in bunch)
        if len(bunch) < BUNCH and so_far + load.iteration_on(machines) <= (1 + SIMILAR) * iteration:
            bunch.append(load)
    return bunch if bunch and is_similar(bunch) else []


def _until_next_end_s(now: Situation) -> float:
    """Seconds until a job ends, and groups may change anyway; as long as one iteration takes if none is
    known."""
    ends = []
    for group in now.groups:
        loads = [now.loads[job] for job in group.jobs]
        seconds = group_iteration_s(loads, group.machines)
        ends += [seconds * (load.iterations_left or 1.0) for load in loads]
    return min(ends, default=float("inf"))


def _standing_still_s(before: Sequence[Group], after: Sequence[Group], loads: Mapping[str, JobLoad]) -> float:
    """Machine-seconds for which jobs stand still that must stop and start again, now or later.

    The machines of a group count for each of its jobs in equal parts: the others go on.

    A new group takes over the machines of an old one that has as many, and most of its jobs.
    """
    shared = sorted(
        (-len(set(old.jobs) & set(new.jobs)), i, j)
        for i, old in enumerate(before)
        for j, new in enumerate(after)
        if old.machines == new.machines and set(old.jobs) & set(new.jobs)
    )
    heir: dict[int, int] = {}
    for _, i, j in shared:
        if i not in heir and j not in heir.values():
            heir[i] = j
    group_of = {job: i for i, old in enumerate(before) for job in old.jobs}
    stays = {job for i, j in heir.items() for job in set(before[i].jobs) & set(after[j].jobs)}
    goes_to = {job: group for group in after for job in group.jobs}
    seconds = 0.0
    for job, i in group_of.items():
        if job not in stays:
            group = goes_to.get(job, before[i])
            seconds += loads[job].move_s * group.machines / len(group.jobs)
    return seconds
