"""How fast jobs go that share machines, and how well they use them ([PS] Eq. 4.1 to 4.4)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from hpcbal.policies.grouping.values import Group, JobLoad

CPU_WEIGHT = 2 / 3
"""Of the use of cores in the score of a grouping; the rest is that of the network. [PS] Sec. 4.3.2 asks for
more than a half, because computing is what brings a job on, and gives no number."""


def group_iteration_s(loads: Iterable[JobLoad], machines: int) -> float:
    """Seconds in which every job of a group ends an iteration ([PS] Eq. 4.1).

    Args:
        loads: of the group's jobs, at least one.
        machines: of the group, >= 1.
    """
    jobs = list(loads)
    compute = sum(load.compute_on(machines) for load in jobs)
    network = sum(load.network_on(machines) for load in jobs)
    return max(compute, network, max(load.iteration_on(machines) for load in jobs))


def utilization(loads: Iterable[JobLoad], machines: int) -> tuple[float, float]:
    """Shares of a group iteration in which its cores and its network are used ([PS] Eq. 4.3)."""
    jobs = list(loads)
    seconds = group_iteration_s(jobs, machines)
    compute = sum(load.work_s for load in jobs) / machines
    network = sum(load.network_on(machines) for load in jobs)
    return compute / seconds, network / seconds


def cluster_utilization(
    groups: Sequence[Group], loads: Mapping[str, JobLoad], machines: int
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


def worth(loads: Iterable[JobLoad], machines: int) -> float:
    """What a group adds to the score of a grouping, in machines: the use of its cores and network, weighted.

    Deviation from [PS]: of the use of the network only that counts which a job has on as few machines as it
    needs, see `JobLoad.useful_network_on`. Otherwise a job would be worth more the more it has to talk.
    """
    jobs = list(loads)
    cores = sum(load.work_s for load in jobs) / machines
    links = sum(load.useful_network_on(machines) for load in jobs)
    weighted = CPU_WEIGHT * cores + (1 - CPU_WEIGHT) * links
    return machines * weighted / group_iteration_s(jobs, machines)


def score(groups: Sequence[Group], loads: Mapping[str, JobLoad], machines: int) -> float:
    """What a grouping is worth, 0 to 1: the weighted use of cores and network; see `worth`."""
    return sum(worth([loads[job] for job in group.jobs], group.machines) for group in groups) / machines
