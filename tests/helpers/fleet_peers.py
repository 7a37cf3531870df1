"""The algorithms of [FLEET] to the letter, and the optimum of placements: what ours are compared with."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Sequence

import numpy as np
import numpy.typing as npt


def literal_flotilla(
    rates: npt.NDArray[np.float64], candidates: Sequence[int], delta: float, skip_slower_counts: bool
) -> tuple[list[int], list[int]]:
    """[FLEET] Alg. 2 as three plain loops: members (rows of `rates`) and the slots of each, extras included.

    `rates` has shape (num_dnns, M). `skip_slower_counts` skips numbers of slots with which a DNN is no faster
    than with fewer, as hpcbal does; without it Eq. 3 is used as published.
    """
    table = rates.tolist()  # plain floats, because numpy scalars would slow the loops down
    num_slots = rates.shape[1]
    fastest = max(candidates, key=lambda i: table[i][0])
    reference = table[fastest][0]
    members, counts = [fastest], [1]
    while len(members) < len(candidates):
        best = None
        for i in candidates:
            if i in members:
                continue
            top = -1.0
            for m in range(1, num_slots - sum(counts) + 1):
                if skip_slower_counts and table[i][m - 1] <= top:
                    continue
                top = max(top, table[i][m - 1])
                distance = abs(table[i][m - 1] - reference)
                if distance <= delta and (best is None or (distance, m) < best[:2]):
                    best = (distance, m, i)
        if best is None:
            break
        members.append(best[2])
        counts.append(best[1])
    passed_over: set[int] = set()
    while sum(counts) < num_slots and len(passed_over) < len(members):
        places = [p for p in range(len(members)) if p not in passed_over]
        slowest = min(places, key=lambda p: table[members[p]][counts[p] - 1])
        row, now = table[members[slowest]], counts[slowest]
        most = now + num_slots - sum(counts)
        faster = next((m for m in range(now + 1, most + 1) if row[m - 1] > row[now - 1]), None)
        if faster is None:
            passed_over.add(slowest)
        else:
            counts[slowest] = faster
    return members, counts


def least_score(counts: Sequence[int], node_sizes: Sequence[int]) -> float:
    """The optimum of [FLEET] Eq. 4 over all placements, split groups and gaps included; small inputs only."""

    @functools.cache
    def best(i: int, free: tuple[int, ...]) -> float:
        if i == len(counts):
            return 0.0
        scores = []
        for parts in _ways_to_take(counts[i], free):
            left = tuple(sorted(room - part for room, part in zip(free, parts, strict=True)))
            scores.append(sum(part > 0 for part in parts) / counts[i] + best(i + 1, left))
        return min(scores)

    return best(0, tuple(sorted(node_sizes)))


def _ways_to_take(number: int, free: Sequence[int]) -> Iterator[tuple[int, ...]]:
    """All ways to take `number` slots from nodes with `free` slots."""
    if not free:
        if number == 0:
            yield ()
        return
    for part in range(min(number, free[0]) + 1):
        for rest in _ways_to_take(number - part, free[1:]):
            yield (part, *rest)
