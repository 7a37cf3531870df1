"""Improve a small grouping step by step, where rounding and few jobs leave the heuristics off."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TypeVar

from hpcbal.policies.grouping.arrays import LoadArrays
from hpcbal.policies.grouping.dealing import Fits

BETTER = 1e-6
"""A step must gain so much."""

MOST_MOVED = 2
"""Machines at a time: with blocks that are not cut further, one more may bring nothing."""


@dataclass(frozen=True, slots=True)
class Draft:
    """A grouping by numbers of jobs.

    Attributes:
        groups: numbers of the jobs of each group.
        given: machines of each group.
        score: see `model.score`.
    """

    groups: tuple[tuple[int, ...], ...]
    given: tuple[int, ...]
    score: float


def improved(loads: LoadArrays, draft: Draft, machines: int, fits: Fits | None) -> Draft:
    """The best grouping that single steps lead to, each of them the best one of all.

    A step moves a few machines from one group to another or lets one idle, moves a job to another group, lets
    a job wait or run, swaps two jobs, also with one that waits, or joins two groups.
    """
    worth = _Worth(loads, fits)
    while True:
        best = draft
        for groups, given in _steps(loads, draft, machines):
            value = sum(map(worth.of, groups, given)) / machines
            if value > best.score + BETTER:
                best = Draft(groups, given, value)
        if best is draft:
            return draft
        draft = best


class _Worth:
    """What groups add to a score; most of them are in many groupings, so it is kept.

    Args:
        loads: of the jobs.
        fits: None: memory is no matter.
    """

    def __init__(self, loads: LoadArrays, fits: Fits | None) -> None:
        self._loads, self._fits = loads, fits
        self._most = loads.most.tolist()
        self._known: dict[tuple[tuple[int, ...], int], float] = {}

    def of(self, group: tuple[int, ...], count: int) -> float:
        """See `LoadArrays.worth`; minus infinity if the jobs cannot be on so many machines together."""
        value = self._known.get((group, count))
        if value is None:
            is_able = count <= min(self._most[job] for job in group)
            if is_able and (self._fits is None or self._fits(group, count)):
                value = self._loads.worth(group, count)
            else:
                value = -math.inf
            self._known[group, count] = value
        return value


T = TypeVar("T")
Step = tuple[tuple[tuple[int, ...], ...], tuple[int, ...]]


def _steps(loads: LoadArrays, draft: Draft, machines: int) -> Iterator[Step]:
    groups, given = draft.groups, draft.given
    placed = {job for group in groups for job in group}
    waiting = [job for job in range(len(loads)) if job not in placed]
    count = len(groups)
    for number in range(1, min(MOST_MOVED, machines - sum(given)) + 1):
        for one in range(count):
            yield groups, _with(given, (one, given[one] + number))
    for one in range(count):
        if given[one] > 1:
            yield groups, _with(given, (one, given[one] - 1))
        for other in range(count):
            if one != other:
                for number in range(1, min(MOST_MOVED, given[one] - 1) + 1):
                    yield groups, _with(given, (one, given[one] - number), (other, given[other] + number))
        if count > 1 and one + 1 < count:
            for other in range(one + 1, count):
                joined = _without(_with(groups, (one, groups[one] + groups[other])), other)
                yield joined, _without(_with(given, (one, given[one] + given[other])), other)
                for a in groups[one]:
                    for b in groups[other]:
                        yield (
                            _with(
                                groups, (one, _swap(groups[one], a, b)), (other, _swap(groups[other], b, a))
                            ),
                            given,
                        )
        for job in groups[one]:
            rest = tuple(each for each in groups[one] if each != job)
            for each in waiting:
                yield _with(groups, (one, (*rest, each))), given
            if given[one] > 1 and rest:  # a group of its own
                for mine in {1, given[one] // 2, given[one] - 1}:
                    yield (
                        (*_with(groups, (one, rest)), (job,)),
                        (*_with(given, (one, given[one] - mine)), mine),
                    )
            for other in range(count):
                if other != one and rest:
                    yield _with(groups, (one, rest), (other, (*groups[other], job))), given
                elif other != one:
                    moved = _with(groups, (other, (*groups[other], job)))
                    yield (
                        _without(moved, one),
                        _without(_with(given, (other, given[other] + given[one])), one),
                    )
            if rest:
                yield _with(groups, (one, rest)), given
        for job in waiting:
            yield _with(groups, (one, (*groups[one], job))), given


def _with(values: Sequence[T], *changes: tuple[int, T]) -> tuple[T, ...]:
    changed = list(values)
    for index, value in changes:
        changed[index] = value
    return tuple(changed)


def _without(values: Sequence[T], index: int) -> tuple[T, ...]:
    return (*values[:index], *values[index + 1 :])


def _swap(group: tuple[int, ...], old: int, new: int) -> tuple[int, ...]:
    return tuple(new if job == old else job for job in group)
