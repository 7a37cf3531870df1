"""Change groups when a job has come or ended, moving few jobs ([PS] Sec. 4.3.2, Dynamic Job Regrouping).

How the paper is read here (docs/adr/0021):

- A job is similar to another one if its iteration, and the computing in it, differ by at most `SIMILAR` of
  the other's iteration. A bunch of jobs is similar by its sums.
- Combinations of groups are not all tried: groups take part from the one with fewest jobs to the one with
  most, twice as many each time, beside the one that the change concerns.
- What moving costs is weighed against what it brings, which the paper leaves to future work. How long jobs go
  on is rarely known. So groups change once the time lost without the change is `PAYS` times what it costs, as
  one rents skis until the rent has come to what they cost (Karlin et al. 1988, Competitive Snoopy Caching).
- No job that runs is left to wait: it would be missing when the others have ended, and fewer jobs would have
  to use all machines.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from hpcbal.policies.grouping.model import score
from hpcbal.policies.grouping.scheduling import FitsTogether, schedule
from hpcbal.policies.grouping.values import Group, JobLoad

SIMILAR = 0.05
JOB_GAIN = 0.01
"""By so much a further job must raise the score of a grouping, see `schedule`."""

PAYS = 4.0
"""A change is made when so many times what it costs has been lost without it."""

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
        lost_s: seconds by which jobs would be further on if better groups had been formed as soon as there
            were any, >= 0; see `Losses`.
    """

    machines: int
    loads: Mapping[str, JobLoad]
    groups: tuple[Group, ...]
    changed: Group | None = None
    lost_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Regrouping:
    """What there is to change.

    Attributes:
        groups: that are worth a change; None: none are yet.
        loss: share of the time that is lost as long as nothing changes, 0 to 1.
        due_in_s: seconds after which a change pays if all stays as it is; infinite: none would gain enough.
    """

    groups: tuple[Group, ...] | None = None
    loss: float = 0.0
    due_in_s: float = math.inf


class Losses:
    """Adds up what is lost while groups stay as they are.

    Attributes:
        lost_s: seconds lost so far.
        due_s: when a change pays if nothing happens before.
    """

    def __init__(self) -> None:
        self.lost_s, self.due_s = 0.0, math.inf
        self._loss = self._since_s = 0.0

    def add_until(self, now_s: float) -> None:
        """Add what has been lost since the last time; from now on nothing is, until the next `note`."""
        self.lost_s += self._loss * (now_s - self._since_s)
        self._loss, self._since_s, self.due_s = 0.0, now_s, math.inf

    def note(self, found: Regrouping) -> None:
        """What is lost from now on; nothing has been lost if groups change."""
        self._loss, self.due_s = found.loss, self._since_s + found.due_in_s
        if found.groups is not None:
            self.lost_s = 0.0


def regroup(now: Situation, *, min_gain: float, fits: FitsTogether | None = None) -> Regrouping:
    """Look for groups that are worth a change.

    Args:
        now: what there is. min_gain: the score must grow by this share, and by as much again for each further
        group that takes part. fits: see `schedule`.
    """
    base = score(now.groups, now.loads, now.machines)
    most, able = base, []
    for groups in _options(now, fits):
        value = score(groups, now.loads, now.machines)
        if value > most * (1 + min_gain):
            most = value
            cost_s = _standing_still_s(now.groups, groups, now.loads) / now.machines
            able.append(((value - base) / value, cost_s, groups))
    if not able:
        return Regrouping()
    loss = able[-1][0]
    waited_s = now.lost_s / loss  # if as much was lost all the time
    gain, cost_s, groups = max(able, key=lambda option: option[0] * waited_s - PAYS * option[1])
    if gain * waited_s >= PAYS * cost_s:
        return Regrouping(groups)
    return Regrouping(None, loss, min(PAYS * cost_s / gain for gain, cost_s, _ in able) - waited_s)


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
