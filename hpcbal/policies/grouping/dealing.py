"""Deal machines out to groups, one at a time ([PS] Sec. 4.3.2)."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Sequence

from hpcbal.policies.grouping.arrays import LoadArrays

Fits = Callable[[Sequence[int], int], bool]
"""Whether jobs, by their numbers, fit into the memory of so many machines together."""


def deal_machines(
    loads: LoadArrays, groups: Sequence[Sequence[int]], machines: int, fits: Fits | None = None
) -> list[int] | None:
    """Machines of each group: one after the other to the group that computes longest beyond its
    communication.

    Args:
        loads: of the jobs.
        groups: numbers of the jobs of each, at most as many groups as machines.
        machines: >= 1.
        fits: None: memory is no matter.

    Returns: at least one each, all of them unless no job can use more; None if the memory does not suffice.
    """
    given = [1] * len(groups)
    left = machines - len(groups)
    sums = loads.summed(groups)
    for index, group in enumerate(groups):
        while fits is not None and not fits(group, given[index]):
            if not left or given[index] >= sums.most[index]:
                return None
            given[index] += 1
            left -= 1
    rows: list[tuple[float, ...]] = list(
        zip(
            sums.compute.tolist(),
            sums.constant.tolist(),
            sums.dense.tolist(),
            sums.sparse.tolist(),
            sums.most.tolist(),
            strict=True,
        )
    )

    def lack(index: int) -> float:
        compute, constant, dense, sparse, _ = rows[index]
        count = given[index]
        return constant + (1 - 1 / count) * (dense + sparse / count) - compute / count

    queue = [(lack(index), index) for index in range(len(groups)) if given[index] < rows[index][4]]
    heapq.heapify(queue)
    while left and queue:
        index = queue[0][1]
        given[index] += 1
        left -= 1
        if given[index] < rows[index][4]:
            heapq.heapreplace(queue, (lack(index), index))
        else:
            heapq.heappop(queue)
    return given
