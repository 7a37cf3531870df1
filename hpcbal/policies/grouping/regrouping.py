"""Change groups that have become worse than others would be, and let waiting jobs join.

Regrouping).

How the paper is read here (docs/adr/0021):

- A job is similar to another one if its iteration, and the computing in it, differ by at most `SIMILAR` of
  the other's iteration. A bunch of jobs is similar by its sums.
- Combinations of groups are not all tried: first those take part in which a job has ended, then the others,
  each from the one with fewest jobs to the one with most, twice as many each time.
- What moving costs is weighed against what it brings, which the paper leaves to future work. How long groups
  would last is not known. So groups change once the loss without the change is `PAYS` times its cost: the
  rent-or-buy rule (Karlin et al. 1988, Competitive Snoopy Caching), which has `PAYS` = 1. A larger value
  keeps the share of time that moves cost low. More machines load faster, but for the shortest start of any
  job so far.
- No job that runs is left to wait: it would be missing when the others have ended, and fewer jobs would have
  to use all machines.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from hpcbal.policies.grouping.groups import JobGroup, JobLoad, group_iteration_s, score, worth
from hpcbal.policies.grouping.scheduling import FitsTogether, schedule

LOOKED_AT = 16
"""Number of waiting jobs that are tried, the first ones."""


def filled(
    groups: Sequence[JobGroup],
    open_to_jobs: Iterable[int],
    waiting: Sequence[JobLoad],
    loads: Mapping[str, JobLoad],
    *,
    min_gain: float,
    fits: FitsTogether | None = None,
) -> tuple[JobGroup, ...]:
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
        JobGroup(tuple(load.name for load in jobs), group.machines)
        for jobs, group in zip(members, groups, strict=True)
    )


SIMILAR = 0.05
JOB_GAIN = 0.01
"""By so much a further job must raise the score of a grouping, see `schedule`."""

PAYS = 4.0
"""Groups change once the loss without the change is so many times its cost. The larger it is, the less time
moves cost, and the longer machines are idle (docs/experiments.md)."""

BUNCH = 3
"""Most jobs that take the place of one."""


@dataclass(frozen=True, slots=True)
class Situation:
    """The machines, jobs and groups of the moment.

    Attributes:
        machines: of the run.
        loads: of all jobs that run or wait, by name; those that wait in order of arrival.
        groups: as they are, without a job that has ended.
        beside_ended: jobs that shared machines with one that has ended; their groups take part first.
        lost_s: machine-seconds that were lost because better groups have not been formed yet, >= 0; see
            `Losses`.
        start_s: seconds of a start that do not depend on the number of machines, >= 0.
    """

    machines: int
    loads: Mapping[str, JobLoad]
    groups: tuple[JobGroup, ...]
    beside_ended: frozenset[str] = frozenset()
    lost_s: float = 0.0
    start_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Regrouping:
    """A decision about a change of groups.

    Attributes:
        groups: that are worth a change; None: none are yet.
        loss: machines whose work is lost as long as nothing changes, >= 0.
        due_in_s: seconds after which a change pays if all stays as it is; infinite: none gains enough. 0
            after a change: the next one is not known yet.
    """

    groups: tuple[JobGroup, ...] | None = None
    loss: float = 0.0
    due_in_s: float = math.inf


class Losses:
    """Adds up what is lost while groups stay as they are.

    Attributes:
        lost_s: machine-seconds lost so far.
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
        """Let the loss of a decision add up from now on; without one, nothing has been lost."""
        self._loss, self.due_s = found.loss, self._since_s + found.due_in_s
        if not found.loss:
            self.lost_s = 0.0


@dataclass(frozen=True, slots=True)
class _Option:
    """Other groups: the machines whose work they gain, and machine-seconds that moves to them cost."""

    groups: tuple[JobGroup, ...]
    gain: float
    cost_s: float


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
        if value <= most * (1 + min_gain):
            continue
        gain = (value - base) / value * now.machines
        moves = _moves(now.groups, groups)
        cost_s = _standing_still_s(moves, now.loads, now.start_s)
        if gain * _longest_left_s(now, moves) >= cost_s:
            most = value
            able.append(_Option(groups, gain, cost_s))
    if not able:
        return Regrouping()
    loss = able[-1].gain
    waited_s = now.lost_s / loss  # if as much was lost all the time
    best = max(able, key=lambda each: (each.gain * waited_s - PAYS * each.cost_s, each.gain))
    if best.gain * waited_s >= PAYS * best.cost_s:
        return Regrouping(best.groups, due_in_s=0.0)
    return Regrouping(None, loss, min(PAYS * each.cost_s / each.gain for each in able) - waited_s)


def _options(now: Situation, fits: FitsTogether | None) -> Iterator[tuple[JobGroup, ...]]:
    """Other groups, those first for which fewer jobs move."""
    order = sorted(now.groups, key=lambda group: (now.beside_ended.isdisjoint(group.jobs), len(group.jobs)))
    for count in _participants(len(order)):
        kept = order[count:]
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


def _moves(before: Sequence[JobGroup], after: Sequence[JobGroup]) -> dict[str, JobGroup]:
    """By job that must stop and start again, now or later: its new group, or its old one if it has none.

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
    stays = {job for i, j in heir.items() for job in set(before[i].jobs) & set(after[j].jobs)}
    goes_to = {job: group for group in after for job in group.jobs}
    return {job: goes_to.get(job, old) for old in before for job in old.jobs if job not in stays}


def _standing_still_s(
    moves: Mapping[str, JobGroup], loads: Mapping[str, JobLoad], start_s: float = 0.0
) -> float:
    """Machine-seconds for which jobs that move stand still.

    The machines of a group count for each of its jobs in equal parts: the others go on.
    """
    return sum(
        loads[job].moving_to(group.machines, start_s) * group.machines / len(group.jobs)
        for job, group in moves.items()
    )


def _longest_left_s(now: Situation, moves: Mapping[str, JobGroup]) -> float:
    """Seconds until the last of the jobs that would move ends if it stays; infinite if that is not known, or
    none moves."""
    ends = []
    for group in now.groups:
        left = [now.loads[job].iterations_left for job in group.jobs if job in moves]
        if left:
            seconds = group_iteration_s([now.loads[job] for job in group.jobs], group.machines)
            ends += [math.inf if each is None else each * seconds for each in left]
    return max(ends, default=math.inf)
