"""Improve a small grouping step by step, where rounding and few jobs leave the heuristics off."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

from hpcbal.policies.grouping.arrays import LoadArrays
from hpcbal.policies.grouping.dealing import Fits

BETTER = 1e-6
"""A step must gain so much."""

MOST_MOVED = 2
"""Machines at a time: with blocks that are not cut further, one more may bring nothing."""

Jobs = tuple[int, ...]
"""Numbers of the jobs of a group, ascending."""


@dataclass(frozen=True, slots=True)
class NumberedGrouping:
    """A grouping by numbers of jobs.

    Attributes:
        groups: numbers of the jobs of each group.
        given: machines of each group.
        score: see `groups.score`.
    """

    groups: tuple[Jobs, ...]
    given: tuple[int, ...]
    score: float


@dataclass(frozen=True, slots=True)
class _Step:
    """A change of a grouping.

    Attributes:
        gone: indices of groups that are replaced.
        come: groups in their place, in the same order, and how many machines each has. If there are fewer,
            the last ones of `gone` end; if there are more, the last ones of `come` are new.
    """

    gone: tuple[int, ...]
    come: tuple[tuple[Jobs, int], ...]


class GroupingTuner:
    """Improves groupings of the same jobs; what groups are worth is kept from one to the next.

    Args:
        loads: of the jobs.
        machines: of the run.
        fits: None: memory is no matter.
    """

    def __init__(self, loads: LoadArrays, machines: int, fits: Fits | None) -> None:
        self._loads, self._machines, self._fits = loads, machines, fits
        self._most = loads.most.tolist()
        self._worth: dict[tuple[Jobs, int], float] = {}
        self._ends: dict[frozenset[tuple[Jobs, int]], NumberedGrouping] = {}

    def improved(self, draft: NumberedGrouping) -> NumberedGrouping:
        """The best grouping that single steps lead to, each of them the best one of all.

        A step moves a few machines from one group to another or lets one idle, moves a job to another group,
        lets a job wait or run, swaps two jobs, also with one that waits, or joins two groups.
        """
        passed = []
        while True:
            key = frozenset(zip(draft.groups, draft.given, strict=True))
            end = self._ends.get(key)
            passed.append(key)
            if end is None:
                better = self._best_step(draft)
                if better is not None:
                    draft = better
                    continue
                end = draft
            self._ends.update(dict.fromkeys(passed, end))
            return end

    def _best_step(self, draft: NumberedGrouping) -> NumberedGrouping | None:
        """The grouping after the best step; None: no step makes it better."""
        worth, known = self._worth_of, self._worth
        mine = [worth(pair) for pair in zip(draft.groups, draft.given, strict=True)]
        most, best = BETTER * self._machines, None
        for step in _steps(draft, len(self._loads), self._machines):
            gain = 0.0
            for pair in step.come:
                value = known.get(pair)
                gain += worth(pair) if value is None else value
            for index in step.gone:
                gain -= mine[index]
            if gain > most:
                most, best = gain, step
        return None if best is None else self._after(draft, best)

    def _after(self, draft: NumberedGrouping, step: _Step) -> NumberedGrouping:
        pairs: list[tuple[Jobs, int] | None] = list(zip(draft.groups, draft.given, strict=True))
        for place, index in enumerate(step.gone):
            pairs[index] = step.come[place] if place < len(step.come) else None
        pairs += step.come[len(step.gone) :]
        left = [pair for pair in pairs if pair is not None]
        score = sum(map(self._worth_of, left)) / self._machines
        return NumberedGrouping(tuple(jobs for jobs, _ in left), tuple(count for _, count in left), score)

    def _worth_of(self, pair: tuple[Jobs, int]) -> float:
        """See `LoadArrays.worth`; minus infinity if the jobs cannot be on so many machines together."""
        value = self._worth.get(pair)
        if value is None:
            jobs, count = pair
            is_able = count <= min(self._most[job] for job in jobs)
            if is_able and (self._fits is None or self._fits(jobs, count)):
                value = self._loads.worth(jobs, count)
            else:
                value = -math.inf
            self._worth[pair] = value
        return value


def _steps(draft: NumberedGrouping, num_jobs: int, machines: int) -> Iterator[_Step]:
    groups, given = draft.groups, draft.given
    placed = {job for group in groups for job in group}
    waiting = [job for job in range(num_jobs) if job not in placed]
    idle = machines - sum(given)
    for one, (mine, own) in enumerate(zip(groups, given, strict=True)):
        for number in range(1, min(MOST_MOVED, idle) + 1):
            yield _Step((one,), ((mine, own + number),))
        if own > 1:
            yield _Step((one,), ((mine, own - 1),))
        for job in waiting:
            yield _Step((one,), ((_with(mine, job), own),))
        for job in mine:
            rest = _without(mine, job)
            for each in waiting:
                yield _Step((one,), ((_with(rest, each), own),))
            if rest:
                yield _Step((one,), ((rest, own),))
            if own > 1 and rest:  # a group of its own
                for count in {1, own // 2, own - 1}:
                    yield _Step((one,), ((rest, own - count), ((job,), count)))
        for other, (theirs, others) in enumerate(zip(groups, given, strict=True)):
            if one != other:
                yield from _steps_of_two(one, mine, own, other, theirs, others)


def _steps_of_two(one: int, mine: Jobs, own: int, other: int, theirs: Jobs, others: int) -> Iterator[_Step]:
    """One group gives machines or a job to another; each pair of groups swaps jobs, or becomes one, once."""
    for number in range(1, min(MOST_MOVED, own - 1) + 1):
        yield _Step((one, other), ((mine, own - number), (theirs, others + number)))
    for job in mine:
        if rest := _without(mine, job):
            yield _Step((one, other), ((rest, own), (_with(theirs, job), others)))
    if one < other:
        yield _Step((one, other), ((_with(mine, *theirs), own + others),))
        for a in mine:
            for b in theirs:
                swapped = (_with(_without(mine, a), b), own), (_with(_without(theirs, b), a), others)
                yield _Step((one, other), swapped)


def _with(group: Jobs, *jobs: int) -> Jobs:
    return tuple(sorted((*group, *jobs)))


def _without(group: Jobs, job: int) -> Jobs:
    return tuple(each for each in group if each != job)
