"""Loads of many jobs as arrays, so that thousands of them are grouped in a second."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cached_property
from typing import Self

import numpy as np
from numpy.typing import NDArray

from hpcbal.policies.grouping.groups import CPU_WEIGHT, JobLoad

Floats = NDArray[np.float64]


def _share(blocks: float, machines: int) -> float:
    """As `largest_share`; infinite blocks: as many as need be, so that shares are even."""
    return 1 / machines if blocks == math.inf else math.ceil(blocks / machines) / blocks


def _largest_shares(blocks: Floats, machines: float | Floats) -> Floats:
    """As `_share`, for many jobs, and for machines that need not be whole."""
    finite = np.where(np.isinf(blocks), 1.0, blocks)
    return np.where(np.isinf(blocks), 1 / machines, np.ceil(finite / machines) / finite)


class LoadArrays:
    """The needs of jobs, as functions of the number m of their machines; see `JobLoad`.

    On m machines a job computes for `compute * d` seconds and communicates for
    `constant + (m - 1) * p * (dense + sparse / m ** growth)` seconds, where d and p are the largest shares of
    data blocks and parameter blocks, each 1 / m or a little more.

    Args:
        compute, constant, dense, sparse, growth: shape (num_jobs,).
        useful: machine-seconds of traffic that jobs have on as few machines as they need, without `constant`,
            shape (num_jobs,).
        data_blocks, parameter_blocks: of each job, infinite if it is cut into as many as need be, shape
            (num_jobs,).
    """

    def __init__(
        self,
        compute: Floats,
        constant: Floats,
        dense: Floats,
        sparse: Floats,
        growth: Floats,
        useful: Floats,
        data_blocks: Floats,
        parameter_blocks: Floats,
    ) -> None:
        self.compute, self.constant, self.dense, self.sparse = compute, constant, dense, sparse
        self.growth, self.useful = growth, useful
        self.data_blocks, self.parameter_blocks = data_blocks, parameter_blocks

    @classmethod
    def of(cls, loads: Sequence[JobLoad]) -> Self:
        """The arrays of these jobs, in their order."""
        rows = np.array(
            [
                (
                    load.work_s,
                    load.network_s,
                    load.machines,
                    load.dense_share,
                    load.least_machines,
                    load.row_growth,
                    load.data_blocks or np.inf,
                    load.parameter_blocks or np.inf,
                )
                for load in loads
            ]
        ).reshape(-1, 8)
        is_constant = np.array([load.servers_apart or not load.knows_network for load in loads], bool)
        compute, network_s, measured_on, dense_share, least, growth, data, parameters = rows.T
        sent = np.where(is_constant, 1.0, (measured_on - 1) * _largest_shares(parameters, measured_on))
        moving = np.where(is_constant, 0.0, network_s / sent)
        dense, sparse = moving * dense_share, moving * (1 - dense_share) * measured_on**growth
        sent_on_least = least * (least - 1) * _largest_shares(parameters, least)
        return cls(
            compute,
            np.where(is_constant, network_s, 0.0),
            dense,
            sparse,
            growth,
            sent_on_least * (dense + sparse / least**growth),
            data,
            parameters,
        )

    def __len__(self) -> int:
        return len(self.compute)

    @property
    def most(self) -> Floats:
        """Machines that each job can use at most, shape (num_jobs,)."""
        return np.minimum(self.data_blocks, self.parameter_blocks)

    @property
    def _columns(self) -> tuple[Floats, ...]:
        return (
            self.compute,
            self.constant,
            self.dense,
            self.sparse,
            self.growth,
            self.useful,
            self.data_blocks,
            self.parameter_blocks,
        )

    def of_jobs(self, jobs: Sequence[int]) -> LoadArrays:
        """Some jobs, by their numbers."""
        chosen = np.asarray(jobs)
        return LoadArrays(*(each[chosen] for each in self._columns))

    def compute_on(self, machines: float | Floats) -> Floats:
        """Seconds of computation of each job."""
        return np.asarray(self.compute * _largest_shares(self.data_blocks, machines))

    def network_on(self, machines: float | Floats) -> Floats:
        """Seconds of pull and push of each job."""
        sent = (machines - 1) * _largest_shares(self.parameter_blocks, machines)
        return np.asarray(self.constant + sent * (self.dense + self.sparse / machines**self.growth))

    def summed(self, groups: Sequence[Sequence[int]]) -> LoadArrays:
        """One entry for each group: the sums of its jobs, and the fewest blocks of any of them.

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
            np.minimum.reduceat(self.data_blocks[flat], starts),
            np.minimum.reduceat(self.parameter_blocks[flat], starts),
        )

    @cached_property
    def _rows(self) -> list[tuple[float, ...]]:
        """The needs of each job as plain numbers: for groups of few jobs they are faster than arrays."""
        return list(zip(*(values.tolist() for values in self._columns), strict=True))

    def group_iteration_s(self, group: Sequence[int], machines: int) -> float:
        """As `groups.group_iteration_s`, of jobs by their numbers."""
        compute_s = links = longest = 0.0
        for job in group:
            compute, constant, dense, sparse, growth, _, data, parameters = self._rows[job]
            mine = compute * _share(data, machines)
            sent = (machines - 1) * _share(parameters, machines)
            network = constant + sent * (dense + sparse / float(machines**growth) if sparse else dense)
            compute_s += mine
            links += network
            longest = max(longest, mine + network)
        return max(compute_s, links, longest)

    def score(self, groups: Sequence[Sequence[int]], given: Sequence[int], machines: int) -> float:
        """As `groups.score`, of jobs by their numbers.

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
        compute = self.compute[flat] * _largest_shares(self.data_blocks[flat], own)
        rows = self.sparse[flat] / own ** self.growth[flat]
        sent = (own - 1) * _largest_shares(self.parameter_blocks[flat], own)
        network = self.constant[flat] + sent * (self.dense[flat] + rows)
        longest = np.maximum.reduceat(compute + network, starts)
        compute_s, links = np.add.reduceat(compute, starts), np.add.reduceat(network, starts)
        seconds = np.maximum(np.maximum(compute_s, links), longest)
        cores = np.add.reduceat(self.compute[flat] / own, starts)
        useful = np.add.reduceat(self.constant[flat] + self.useful[flat] / own, starts)
        used = (CPU_WEIGHT * cores + (1 - CPU_WEIGHT) * useful) / seconds
        return float((numbers * used).sum() / machines)
