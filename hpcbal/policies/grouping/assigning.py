"""Assign jobs to a given number of groups ([PS] Alg. 2).

The paper is loose in places. This is how it is read here (docs/adr/0021):

- Alg. 2 fills a group `while |g| <= floor(|J| / n_G)`, which is one job more than its text says, and leaves
  none for the last group. Groups are filled with floor(|J| / n_G) jobs.
- A job whose times are equal complements every group.
- Lines 15 to 21 keep a job that is left over out of groups in which it would be the longest. It never is:
  each group begins with the longest job that no group has yet.
- "Swaps until convergence": the most unbalanced group swaps with the group that is most unbalanced the other
  way, as long as that brings both together closer to balance. Then it is settled, and the next one has its
  turn.
"""

from __future__ import annotations

from collections import deque

import numpy as np
from numpy.typing import NDArray

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
