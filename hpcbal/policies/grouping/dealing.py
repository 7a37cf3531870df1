"""Deal machines out to groups, one at a time ([PS] Sec. 4.3.2)."""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable, Sequence

from hpcbal.policies.grouping.arrays import LoadArrays

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
