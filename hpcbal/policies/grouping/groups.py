"""Needs of jobs that share machines, and their speed together ([PS] Eq. 4.1 to 4.4)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache

from hpcbal.policies.grouping.memory import JobMemory

NOTHING = JobMemory()

UNKNOWN_LOADING_S = 2.0
"""Seconds that a job is assumed to take to start, until that has been measured."""


@lru_cache(65536)
def largest_share(blocks: int | None, machines: int) -> float:
    """Share of the machine that has most, where blocks are dealt out as evenly as possible; None: without
    rest. 16 blocks on 3 machines: 6/16."""
    return 1 / machines if blocks is None else -(-blocks // machines) / blocks


@dataclass(frozen=True, slots=True)
class JobLoad:
    """How one job uses its machines, as measured.

    Servers live on the machines of the workers, so 1/m of the traffic of m machines stays where it is. [PS]
    takes the network time for constant; that holds for many machines only. Samples and parameters are in
    blocks, which are not cut any further, and an iteration waits for the machine that has most of them; [PS]
    takes shares for equal.

    Attributes:
        name: of the job.
        compute_s: seconds of its computation in one iteration on `machines` machines, on the one that takes
            longest, > 0.
        network_s: seconds of its pull and push in one iteration on them, >= 0.
        machines: on how many it was measured, >= 1. On one machine nothing of the network is measured.
        memory: what it keeps on its machines.
        least_machines: the fewest on which it fits, >= 1.
        data_blocks, parameter_blocks: into which it is cut, >= 1; None: into as many parts as need be.
        iterations_left: until its end, as far as known.
        dense_share: share of the network time that is of dense tables, which every worker pulls whole. The
            rest is of rows of sparse tables, whose number falls with the samples of a worker.
        row_growth: n samples need n ** row_growth as many rows as one, 0 to 1. 1: they share none.
        loading_s: seconds to start on `machines` machines, >= 0.
        saving_s: seconds of its last checkpoint, >= 0.
        servers_apart: whether servers are on machines of their own; the network time is constant then.
    """

    name: str
    compute_s: float
    network_s: float
    machines: int
    memory: JobMemory = NOTHING
    least_machines: int = 1
    data_blocks: int | None = None
    parameter_blocks: int | None = None
    iterations_left: float | None = None
    dense_share: float = 1.0
    row_growth: float = 1.0
    loading_s: float = UNKNOWN_LOADING_S
    saving_s: float = 0.0
    servers_apart: bool = False

    @property
    def knows_network(self) -> bool:
        """Whether it was measured where it has to talk."""
        return self.machines > 1 or self.servers_apart

    @property
    def most_machines(self) -> int | None:
        """On which each has a block of samples and one of parameters; None: any number."""
        known = [count for count in (self.data_blocks, self.parameter_blocks) if count is not None]
        return min(known, default=None)

    @property
    def work_s(self) -> float:
        """Machine-seconds of computation in an iteration."""
        return self.compute_s / largest_share(self.data_blocks, self.machines)

    def compute_on(self, machines: int) -> float:
        """Seconds of computation in an iteration on so many machines ([PS] Eq. 4.2)."""
        return self.work_s * largest_share(self.data_blocks, machines)

    def network_on(self, machines: int) -> float:
        """Seconds of pull and push in an iteration on so many machines."""
        if not self.knows_network or self.servers_apart:
            return self.network_s
        away, was_away = self._sent_on(machines), self._sent_on(self.machines)
        dense = self.dense_share * away / was_away
        fewer_rows = float((self.machines / machines) ** self.row_growth)
        sparse = (1 - self.dense_share) * away / was_away * fewer_rows
        return self.network_s * (dense + sparse)

    def _sent_on(self, machines: int) -> float:
        """Return how much of each pulled table the machine with most parameters sends, in tables."""
        return (machines - 1) * largest_share(self.parameter_blocks, machines)

    def moving_to(self, machines: int, start_s: float = 0.0) -> float:
        """Return the seconds for which the job stands still when it moves to so many machines.

        Machines read their shares of the samples at the same time.

        Args:
            start_s: seconds of a start that do not depend on the number of machines.
        """
        shares = largest_share(self.data_blocks, machines) / largest_share(self.data_blocks, self.machines)
        start_s = min(start_s, self.loading_s)
        return self.saving_s + start_s + (self.loading_s - start_s) * shares

    def useful_network_on(self, machines: int) -> float:
        """Seconds of pull and push in an iteration that do not come from more machines than the job needs.

        On more machines than its memory asks for, a job has more traffic altogether, which brings it on no
        further. With servers on machines of their own, the traffic of every machine counts, as in [PS].
        """
        if self.servers_apart or not self.knows_network:
            return self.network_s
        return self.network_on(self.least_machines) * self.least_machines / machines

    def iteration_on(self, machines: int) -> float:
        """Seconds of an iteration of the job alone on so many machines."""
        return self.compute_on(machines) + self.network_on(machines)


@dataclass(frozen=True, slots=True)
class JobGroup:
    """Jobs that share machines, and how many machines."""

    jobs: tuple[str, ...]
    machines: int


@dataclass(frozen=True, slots=True)
class Grouping:
    """All groups, and the jobs that wait."""

    groups: tuple[JobGroup, ...]
    waiting: tuple[str, ...] = ()


CPU_WEIGHT = 2 / 3
"""Weight of the use of cores in the score of a grouping; the rest is that of the network. [PS] Sec. 4.3.2
asks for more than a half, because computing is what brings a job on, and gives no number."""


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


def worth(loads: Iterable[JobLoad], machines: int) -> float:
    """Return a group's part of the score, in machines: the weighted use of its cores and network.

    Deviation from [PS]: of the use of the network only that counts which a job has on as few machines as it
    needs, see `JobLoad.useful_network_on`. Otherwise a job would be worth more the more it has to talk.
    """
    jobs = list(loads)
    cores = sum(load.work_s for load in jobs) / machines
    links = sum(load.useful_network_on(machines) for load in jobs)
    weighted = CPU_WEIGHT * cores + (1 - CPU_WEIGHT) * links
    return machines * weighted / group_iteration_s(jobs, machines)


def score(groups: Sequence[JobGroup], loads: Mapping[str, JobLoad], machines: int) -> float:
    """Return the score of a grouping, 0 to 1: the weighted use of cores and network; see `worth`."""
    return sum(worth([loads[job] for job in group.jobs], group.machines) for group in groups) / machines
