"""Form groups of jobs and deal machines out to them ([PS] Alg. 1 and 2).

The paper is loose in places. This is how it is read here (docs/adr/0021):

- Alg. 2 fills a group `while |g| <= floor(|J| / n_G)`, which is one job more than its text says, and leaves
  none for the last group. Groups are filled with floor(|J| / n_G) jobs.
- A job whose times are equal complements every group.
- Lines 15 to 21 keep a job that is left over out of groups in which it would be the longest. It never is:
  each group begins with the longest job that no group has yet.
- "Swaps until convergence": the most unbalanced group swaps with the group that is most unbalanced the other
  way, as long as that brings both together closer to balance. Then it is settled, and the next one has its
  turn.

How the paper is read here (docs/adr/0021):

- Alg. 1 ends with the first number of jobs that is no better than the one before. The score is not smooth, so
  it would often end far too early. All numbers up to `MOST_TRIED` are tried, of more jobs a geometric series.
  [PS] prefers few jobs in a group, which end sooner, and gives no measure: here each further job must raise
  the score by `job_gain`, unless that costs more than `GIVEN_UP`. Of groupings that are equal within `SAME`,
  the one with fewest jobs is taken.
- The number of groups that balances computing and communicating supposes that all groups are equal. For up to
  `MOST_WITH_NEIGHBOURS` jobs its neighbours are tried as well.
- Jobs are taken in their order, as in [PS], and for up to `MOST_IN_TURN` jobs also in turn from those that
  mainly compute and those that mainly communicate. If the first jobs are all of one kind, no grouping of the
  first few is any good.
- The paper forms no group whose memory does not suffice; neither does this.
"""

from __future__ import annotations

import heapq
import itertools
import math
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache

import numpy as np
from numpy.typing import NDArray

from hpcbal.policies.grouping.arrays import LoadArrays
from hpcbal.policies.grouping.groups import Grouping, JobGroup, JobLoad

Fits = Callable[[tuple[int, ...], int], bool]
"""Whether jobs, by their numbers, fit into the memory of so many machines together."""


def deal_machines(
    loads: LoadArrays, groups: Sequence[tuple[int, ...]], machines: int, fits: Fits | None = None
) -> list[int] | None:
    """Machines of each group: one after the other to the group that computes longest beyond its
    communication.

    Deviation from [PS]: with servers on the workers' machines, a further machine also means more traffic, and
    blocks that are not cut further need not become fewer on any machine. A group gets as many machines as
    make it faster, at most as many again as it has, and none if that does not; machines that no group can use
    stay idle.

    Args:
        loads: of the jobs.
        groups: numbers of the jobs of each, at most as many groups as machines.
        machines: >= 1.
        fits: None: memory is no matter.

    Returns: at least one each; None if the memory does not suffice.
    """
    given = [1] * len(groups)
    left = machines - len(groups)
    sums = loads.summed(groups)
    most = sums.most.tolist()
    for index, group in enumerate(groups):
        while fits is not None and not fits(group, given[index]):
            if not left or given[index] >= most[index]:
                return None
            given[index] += 1
            left -= 1
    times = (sums.compute, sums.constant, sums.dense, sums.sparse, sums.growth)
    rows: list[tuple[float, ...]] = list(zip(*(each.tolist() for each in times), strict=True))

    seconds = [(0.0, 0)] * len(groups)  # of an iteration of each group, and on how many machines
    more = [1] * len(groups)  # machines that make it faster

    def lack(index: int) -> float:
        compute, constant, dense, sparse, growth = rows[index]
        count = given[index]
        network = constant + (1 - 1 / count) * (dense + sparse / float(count**growth))
        return network - compute / count

    def can_use(index: int) -> bool:
        """Whether there are machines that make a group faster: then `more` says how many."""
        count = given[index]
        allowed = int(min(left, count, most[index] - count))
        _, _, dense, sparse, _ = rows[index]
        if not dense + sparse and most[index] == math.inf:
            return allowed > 0
        now_s, now_on = seconds[index]
        if now_on != count:
            now_s = loads.group_iteration_s(groups[index], count)
        for number in range(1, allowed + 1):
            with_more_s = loads.group_iteration_s(groups[index], count + number)
            if with_more_s < now_s:
                more[index] = number
                seconds[index] = with_more_s, count + number
                return True
        return False

    queue = [(lack(index), index) for index in range(len(groups)) if can_use(index)]
    heapq.heapify(queue)
    while left and queue:
        index = queue[0][1]
        if more[index] > left:
            heapq.heappop(queue)
            continue
        given[index] += more[index]
        left -= more[index]
        if can_use(index):
            heapq.heapreplace(queue, (lack(index), index))
        else:
            heapq.heappop(queue)
    return given


Floats = NDArray[np.float64]

CLOSER = 1e-9
"""A swap must bring groups closer to balance by this share of their times; less is rounding."""


def assign_jobs(compute_s: Floats, network_s: Floats, num_groups: int) -> list[list[int]]:
    """Numbers of the jobs of each group.

    Args:
        compute_s, network_s: T_cpu and T_net of each job on as many machines as a group has on average, shape
            (num_jobs,).
        num_groups: 1 to num_jobs.

    Returns: groups of at least one job each; every job is in one.
    """
    differences = compute_s - network_s
    iterations = compute_s + network_s
    groups = _fill(differences, iterations, num_groups)
    sums = np.array([differences[group].sum() for group in groups])
    _place_rest(groups, sums, differences)
    _swap(groups, sums, differences)
    return groups


def _fill(differences: Floats, iterations: Floats, num_groups: int) -> list[list[int]]:
    """Give every group the same number of jobs: long ones together, each the opposite of those before."""
    order = np.argsort(-iterations, kind="stable").tolist()
    computing = deque(job for job in order if differences[job] > 0)
    talking = deque(job for job in order if differences[job] <= 0)
    rank = {job: place for place, job in enumerate(order)}
    size = len(order) // num_groups
    groups: list[list[int]] = []
    for _ in range(num_groups):
        group: list[int] = []
        balance = 0.0
        while len(group) < size:
            if not computing or not talking:
                queue = computing or talking
            elif balance > 0:
                queue = talking
            elif balance < 0:
                queue = computing
            else:
                queue = min(computing, talking, key=lambda each: rank[each[0]])
            group.append(queue.popleft())
            balance += differences[group[-1]]
        groups.append(group)
    groups.append([*computing, *talking])  # the rest
    return groups


def _place_rest(groups: list[list[int]], sums: Floats, differences: Floats) -> None:
    """Put each job that is left over where it balances most; in place.

    `sums` has an entry for the rest too, which is removed with it.
    """
    rest, balance = groups.pop(), sums[:-1]
    for job in sorted(rest, key=lambda each: (-abs(differences[each]), each)):
        best = int(np.argmin(np.abs(differences[job] + balance)))
        groups[best].append(job)
        balance[best] += differences[job]


def _swap(groups: list[list[int]], sums: Floats, differences: Floats) -> None:
    """Swap jobs between groups that are unbalanced in opposite ways; in place."""
    balance = sums[: len(groups)]
    is_open = np.ones(len(groups), bool)
    while is_open.any():
        one = int(np.argmax(np.where(is_open, np.abs(balance), -1.0)))
        away = np.abs(balance[one] - balance)
        away[one] = -1.0
        other = int(np.argmax(away))
        if other == one or not _swap_best(groups, balance, differences, one, other):
            is_open[one] = False


def _swap_best(groups: list[list[int]], balance: Floats, differences: Floats, one: int, other: int) -> bool:
    """Swap the two jobs of two groups that bring them closest to balance; returns whether any did."""
    mine, theirs = differences[groups[one]], differences[groups[other]]
    shift = theirs[None, :] - mine[:, None]
    after = np.abs(balance[one] + shift) + np.abs(balance[other] - shift)
    row, column = np.unravel_index(int(np.argmin(after)), after.shape)
    now = abs(balance[one]) + abs(balance[other])
    if after[row, column] >= now - CLOSER * (np.abs(mine).sum() + np.abs(theirs).sum()):
        return False
    groups[one][row], groups[other][column] = groups[other][column], groups[one][row]
    balance[one] += shift[row, column]
    balance[other] -= shift[row, column]
    return True


@dataclass(frozen=True, slots=True)
class NumberedGrouping:
    """A grouping by numbers of jobs.

    Attributes:
        groups: numbers of the jobs of each group, ascending.
        given: machines of each group.
        score: see `groups.score`.
    """

    groups: tuple[tuple[int, ...], ...]
    given: tuple[int, ...]
    score: float


FitsTogether = Callable[[Sequence[JobLoad], int], bool]
"""Whether jobs fit into the memory of so many machines together."""

MOST_TRIED = 100
MOST_IN_TURN = 24
GROWTH = 1.3
SAME = 0.005
GIVEN_UP = 0.1
"""Share of the best score that fewer jobs may cost: what [PS] gives up so that fewer jobs move."""

NEIGHBOURS = 8
MOST_WITH_NEIGHBOURS = 500


def schedule(
    loads: Sequence[JobLoad], machines: int, fits: FitsTogether | None = None, *, job_gain: float = 0.0
) -> Grouping:
    """Group jobs so that their machines are used well.

    Args:
        loads: jobs that may run, those to be preferred first.
        machines: of the run, >= 1.
        fits: whether a group's memory suffices; None: always.
        job_gain: by so much each further job must raise the score, unless it falls by more than `GIVEN_UP`
            without them; jobs end sooner if fewer go on side by side.

    Returns: groups that hold all machines, unless no group would become faster by more, and the jobs that
        wait.
    """
    everyone = loads
    if fits is not None:  # one that fits nowhere must not keep others from being grouped
        loads = [load for load in loads if fits([load], min(machines, load.most_machines or machines))]
    if not loads:
        return Grouping((), tuple(load.name for load in everyone))
    arrays = LoadArrays.of(loads)

    @cache  # the same few groups are in most groupings
    def fits_together(group: tuple[int, ...], count: int) -> bool:
        assert fits is not None
        return fits([loads[job] for job in group], count)

    check = None if fits is None else fits_together
    spread = NEIGHBOURS if len(loads) <= MOST_WITH_NEIGHBOURS else 0
    orders = [list(range(len(loads)))]
    if len(loads) <= MOST_IN_TURN:
        orders.append(interleaved(arrays, machines))
    drafts = [
        draft
        for order in orders
        for count in _counts(len(loads))
        for draft in _drafts(arrays, order[:count], machines, spread, check)
    ]
    if not drafts:
        return Grouping((), tuple(load.name for load in everyone))
    most = max(draft.score for draft in drafts)
    best = _with_few_jobs([draft for draft in drafts if draft.score >= most * (1 - GIVEN_UP)], job_gain)
    groups = tuple(
        JobGroup(tuple(loads[job].name for job in group), count)
        for group, count in zip(best.groups, best.given, strict=True)
    )
    placed = {job for group in groups for job in group.jobs}
    return Grouping(groups, tuple(load.name for load in everyone if load.name not in placed))


def _with_few_jobs(drafts: Sequence[NumberedGrouping], job_gain: float) -> NumberedGrouping:
    """The grouping to take of good ones: each of its jobs is worth its place."""

    def num_jobs(draft: NumberedGrouping) -> int:
        return sum(map(len, draft.groups))

    def value(draft: NumberedGrouping) -> float:
        return draft.score - job_gain * num_jobs(draft)

    most = max(map(value, drafts))
    return min(
        (draft for draft in drafts if value(draft) >= most - SAME),
        key=lambda draft: (num_jobs(draft), -draft.score),
    )


def _counts(num_jobs: int) -> list[int]:
    """Numbers of jobs to try, ascending: all of few, a geometric series of many."""
    if num_jobs <= MOST_TRIED:
        return list(range(1, num_jobs + 1))
    counts = [1]
    while counts[-1] < num_jobs:
        counts.append(min(num_jobs, int(counts[-1] * GROWTH) + 1))
    return counts


def interleaved(loads: LoadArrays, machines: int) -> list[int]:
    """Numbers of the jobs: those that mainly compute and those that mainly communicate in turn, each in
    their order. So the first few jobs are some of both."""
    share = min(2.0, machines)
    computes = loads.compute_on(share) > loads.network_on(share)
    both = itertools.zip_longest(np.flatnonzero(~computes).tolist(), np.flatnonzero(computes).tolist())
    return [job for pair in both for job in pair if job is not None]


def _drafts(
    everyone: LoadArrays, jobs: Sequence[int], machines: int, spread: int, fits: Fits | None
) -> Iterator[NumberedGrouping]:
    """Groupings of some jobs that fit, one for each number of groups worth trying."""
    loads, most = everyone.of_jobs(jobs), min(len(jobs), machines)
    guesses = _balanced(loads, machines, most)
    near = {guess + step for guess in guesses for step in range(-spread, spread + 1)}
    for count in sorted(count for count in near if 1 <= count <= most):
        share = max(1.0, machines / count)
        found = assign_jobs(loads.compute_on(share), loads.network_on(share), count)
        groups = [tuple(sorted(jobs[position] for position in group)) for group in found]
        given = deal_machines(everyone, groups, machines, fits)
        if given is not None:
            value = everyone.score(groups, given, machines)
            yield NumberedGrouping(tuple(groups), tuple(given), value)


def _balanced(loads: LoadArrays, machines: int, most: int) -> set[int]:
    """Numbers of groups for which jobs compute about as long as they communicate ([PS] Alg. 1, line 6).

    With n equal groups a job computes n times as long as in one. The sum over jobs of |T_cpu - T_net| is
    smallest at a weighted median of the n at which each job is balanced; that is the paper's number. The
    other one balances the sums over all jobs.
    """
    in_one_group, network = loads.compute_on(machines), loads.network_on(max(1.0, machines / most))
    balanced = network / in_one_group
    order = np.argsort(balanced, kind="stable")
    cumulated = np.cumsum(in_one_group[order])
    median = float(balanced[order[np.searchsorted(cumulated, cumulated[-1] / 2)]])
    both = (median, float(network.sum() / in_one_group.sum()))
    return {int(min(most, max(1, round(each)))) for each in both}
