"""Loads of many jobs as arrays, so that thousands of them are grouped in a second."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import Self

import numpy as np
from numpy.typing import NDArray

from hpcbal.policies.grouping.model import CPU_WEIGHT
from hpcbal.policies.grouping.values import JobLoad

Floats = NDArray[np.float64]


class LoadArrays:
    """What jobs need, as functions of the number m of their machines; see `JobLoad`.

    On m machines a job computes for `compute / m` seconds and communicates for
    `constant + (1 - 1 / m) * (dense + sparse / m ** growth)` seconds.

    Args:
        compute, constant, dense, sparse, growth: shape (num_jobs,).
        useful: machine-seconds of traffic that jobs have on as few machines as they need, without `constant`,
            shape (num_jobs,).
        most: machines that each job can use at most, shape (num_jobs,).
    """

    def __init__(
        self,
        compute: Floats,
        constant: Floats,
        dense: Floats,
        sparse: Floats,
        growth: Floats,
        useful: Floats,
        most: Floats,
    ) -> None:
        self.compute, self.constant, self.dense, self.sparse = compute, constant, dense, sparse
        self.growth, self.useful, self.most = growth, useful, most

    @classmethod
    def of(cls, loads: Sequence[JobLoad]) -> Self:
        """The arrays of these jobs, in their order."""
        rows = np.array(
            [
                (
                    load.compute_s,
                    load.network_s,
                    load.machines,
                    load.dense_share,
                    load.most_machines or np.inf,
                    load.least_machines,
                    load.row_growth,
                )
                for load in loads
            ]
        ).reshape(-1, 7)
        is_constant = np.array([load.servers_apart or not load.knows_network for load in loads], bool)
        compute_s, network_s, measured_on, dense_share, most, least, growth = rows.T
        away = np.where(is_constant, 1.0, 1 - 1 / measured_on)
        moving = np.where(is_constant, 0.0, network_s / away)
        dense, sparse = moving * dense_share, moving * (1 - dense_share) * measured_on**growth
        return cls(
            compute_s * measured_on,
            np.where(is_constant, network_s, 0.0),
            dense,
            sparse,
            growth,
            (least - 1) * (dense + sparse / least**growth),
            most,
        )

    def __len__(self) -> int:
        return len(self.compute)

    def first(self, count: int) -> LoadArrays:
        """The first jobs."""
        return LoadArrays(
            *(
                each[:count]
                for each in (
                    self.compute,
                    self.constant,
                    self.dense,
                    self.sparse,
                    self.growth,
                    self.useful,
                    self.most,
                )
            )
        )

    def compute_on(self, machines: float | Floats) -> Floats:
        """Seconds of computation of each job."""
        return np.asarray(self.compute / machines)

    def network_on(self, machines: float | Floats) -> Floats:
        """Seconds of pull and push of each job."""
        return np.asarray(
            self.constant + (1 - 1 / machines) * (self.dense + self.sparse / machines**self.growth)
        )

    def summed(self, groups: Sequence[Sequence[int]]) -> LoadArrays:
        """One entry for each group: the sums of its jobs, and the least of what they can use at most.

        The growth is an average, so the network time of a group is near the sum of those of its jobs.
        """
        flat = np.concatenate([np.asarray(group) for group in groups])
        starts = np.cumsum([0, *(len(group) for group in groups[:-1])])

        def sums(each: Floats) -> Floats:
            return np.asarray(np.add.reduceat(each[flat], starts))

        sparse = sums(self.sparse)
        growth = sums(self.sparse * self.growth) / np.where(sparse > 0, sparse, 1.0)
        return LoadArrays(
            sums(self.compute),
            sums(self.constant),
            sums(self.dense),
            sparse,
            growth,
            sums(self.useful),
            np.minimum.reduceat(self.most[flat], starts),
        )

    @cached_property
    def _rows(self) -> list[tuple[float, ...]]:
        """What each job needs, as plain numbers: for groups of few jobs they are faster than arrays."""
        each = (self.compute, self.constant, self.dense, self.sparse, self.growth, self.useful)
        return list(zip(*(values.tolist() for values in each), strict=True))

    def group_iteration_s(self, group: Sequence[int], machines: int) -> float:
        """As `model.group_iteration_s`, of jobs by their numbers."""
        return self._sums(group, machines)[0]

    def worth(self, group: Sequence[int], machines: int) -> float:
        """What a group adds to the score of a grouping, times the machines of the run."""
        seconds, cores, useful = self._sums(group, machines)
        return machines * (CPU_WEIGHT * cores + (1 - CPU_WEIGHT) * useful) / seconds

    def _sums(self, group: Sequence[int], machines: int) -> tuple[float, float, float]:
        """Seconds of an iteration of a group, of the computing in it, and of its useful communication."""
        cores = links = longest = all_useful = 0.0
        away = 1 - 1 / machines
        for job in group:
            compute, constant, dense, sparse, growth, useful = self._rows[job]
            mine = compute / machines
            network = constant + away * (dense + sparse / float(machines**growth) if sparse else dense)
            cores += mine
            links += network
            longest = max(longest, mine + network)
            all_useful += constant + useful / machines
        return max(cores, links, longest), cores, all_useful

    def score(self, groups: Sequence[Sequence[int]], given: Sequence[int], machines: int) -> float:
        """As `model.score`.

        Args:
            groups: numbers of the jobs of each group, at least one each.
            given: machines of each group.
            machines: of the run.
        """
        numbers = np.array(given, float)
        flat = np.concatenate([np.asarray(group) for group in groups])
        sizes = [len(group) for group in groups]
        starts = np.cumsum([0, *sizes[:-1]])
        own = np.repeat(numbers, sizes)
        compute = self.compute[flat] / own
        rows = self.sparse[flat] / own ** self.growth[flat]
        network = self.constant[flat] + (1 - 1 / own) * (self.dense[flat] + rows)
        cores, links = np.add.reduceat(compute, starts), np.add.reduceat(network, starts)
        seconds = np.maximum(np.maximum(cores, links), np.maximum.reduceat(compute + network, starts))
        useful = np.add.reduceat(self.constant[flat] + self.useful[flat] / own, starts)
        used = (CPU_WEIGHT * cores + (1 - CPU_WEIGHT) * useful) / seconds
        return float((numbers * used).sum() / machines)
