"""Oracles of groupings: the best of a few jobs, by trying all, and how much of the machines one uses."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence

import numpy as np

from hpcbal.policies.grouping.arrays import LoadArrays
from hpcbal.policies.grouping.groups import JobGroup, JobLoad, group_iteration_s


def best_score(loads: Sequence[JobLoad], machines: int) -> float:
    """The best score of all partitions of all subsets of the jobs, with all shares of any machines."""
    arrays, best = LoadArrays.of(loads), 0.0
    for size in range(1, len(loads) + 1):
        for some in itertools.combinations(range(len(loads)), size):
            for groups in partitions(list(some)):
                for total in range(len(groups), machines + 1):
                    for dealt in shares(total, len(groups)):
                        best = max(best, arrays.score(groups, dealt, machines))
    return best


def partitions(items: list[int]) -> Iterator[list[list[int]]]:
    """All ways to cut items into groups."""
    if not items:
        yield []
        return
    for rest in partitions(items[1:]):
        yield [[items[0]], *rest]
        for index, group in enumerate(rest):
            yield [*rest[:index], [items[0], *group], *rest[index + 1 :]]


def shares(total: int, count: int) -> Iterator[tuple[int, ...]]:
    """All ways to deal machines out to groups, at least one each."""
    for cuts in itertools.combinations(range(1, total), count - 1):
        yield tuple(b - a for a, b in itertools.pairwise((0, *cuts, total)))


def random_loads(count: int, rng: np.random.Generator, spread: float = 1.3) -> list[JobLoad]:
    """Jobs that need 1 to 4 machines and whose times of computing and of communicating spread over so many
    powers of ten; half of the mixes with servers on machines of their own."""
    is_apart = bool(rng.integers(2))
    times = (10 ** rng.uniform(-0.3, spread - 0.3, (count, 2))).tolist()
    shares, growth = rng.uniform(0, 1, (2, count)).tolist()
    least = rng.integers(1, 5, count).tolist()
    return [
        JobLoad(
            f"job{index}",
            compute_s,
            network_s,
            4,
            servers_apart=is_apart,
            least_machines=least[index],
            dense_share=shares[index],
            row_growth=growth[index],
        )
        for index, (compute_s, network_s) in enumerate(times)
    ]


def utilization(loads: Iterable[JobLoad], machines: int) -> tuple[float, float]:
    """Shares of a group iteration in which its cores and its network are used ([PS] Eq. 4.3)."""
    jobs = list(loads)
    seconds = group_iteration_s(jobs, machines)
    compute = sum(load.work_s for load in jobs) / machines
    network = sum(load.network_on(machines) for load in jobs)
    return compute / seconds, network / seconds


def cluster_utilization(
    groups: Sequence[JobGroup], loads: Mapping[str, JobLoad], machines: int
) -> tuple[float, float]:
    """Shares of time in which the cores and the links of all machines are used ([PS] Eq. 4.4).

    Args:
        groups: whose jobs are in `loads`.
        loads: by name of job.
        machines: of the run; those in no group are idle.
    """
    cores = links = 0.0
    for group in groups:
        cpu, network = utilization([loads[job] for job in group.jobs], group.machines)
        cores += group.machines * cpu
        links += group.machines * network
    return cores / machines, links / machines
