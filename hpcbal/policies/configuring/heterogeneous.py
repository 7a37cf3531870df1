"""Choose roles, data shares and model shares of unlike machines."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from hpcbal.errors import PolicyError
from hpcbal.policies.batching import split_evenly
from hpcbal.policies.configuring.bound import Relaxation
from hpcbal.policies.configuring.cost_model import Configuration, Problem
from hpcbal.policies.configuring.homogeneous import (
    FloatArray,
    IntArray,
    Kinds,
    Serving,
    group,
    least_slowest,
    sharings,
)
from hpcbal.policies.configuring.worker_times import WorkerTimes, least_epoch, served

_MOST_CASES = 20_000
"""Numbers of workers by kind that are all looked at; above it, the search is local."""
_MOST_SOLVED = 2_000
"""Cases that are solved exactly, one after the other."""
_LEAST_CHANGES, _MOST_CHANGES = 300, 20_000
"""Changes that a local search tries: fewer with many kinds, each of which takes longer."""
_ROUNDING = 1e-9
_FACTORS = (1.0005, 1.003, 1.01, 1.03, 1.1)
"""Over the lower bound: epoch times for which the relaxation proposes cases."""
_NEAR = 8
"""Kinds on either side of the relaxation's split that a local search changes."""


@dataclass(frozen=True, slots=True)
class RatedConfiguration:
    """A configuration, and how good it is.

    Attributes:
        epoch_s: predicted epoch time.
        lower_bound_s: no configuration has a shorter predicted epoch.
    """

    configuration: Configuration
    epoch_s: float
    lower_bound_s: float

    @property
    def gap(self) -> float:
        """How much shorter, as a fraction of the lower bound, the epoch could be at most."""
        return self.epoch_s / self.lower_bound_s - 1.0


@dataclass(frozen=True, slots=True, eq=False)
class _Solved:
    """The best configuration with certain numbers of workers: blocks by kind."""

    epoch_s: float
    workers: IntArray
    servers: IntArray
    data: IntArray
    serving: Serving


def best_heterogeneous(problem: Problem) -> RatedConfiguration:
    """The configuration with the shortest predicted epoch.

    Equal machines form kinds, so a case is a number of workers of each kind; all others serve. A server that
    ends without a parameter block stands by: another server never makes an epoch longer, so no case needs to
    try that. For one case the optimum is exact: `sharings` lists the few ways to share the model out, and for
    each of them a bisection finds the least epoch time for whole data blocks.

    Up to 20,000 cases are all bounded from below at once, with whole blocks, and then solved in ascending
    order of their bounds until no other case can be better. This is exact and takes well below a second for
    32 machines of two kinds. With more cases, a relaxation (`bound`) gives a lower bound and the cases near
    its optimum, from which a local search adds, removes and exchanges workers.

    Ties go to the first case: fewest workers, of the kinds that come last.

    Raises: PolicyError: there are too few machines, or the blocks do not fit into their memory.
    Source: [PS] Fig. 3.2. The paper gives a mixed-integer program with quadratic terms to a commercial
        solver, which takes 37.4 s for 32 machines (Sec. 3.4.6) with a MIP gap of 40 % in the authors' code.
    """
    return _Search(problem, group(problem)).run()


class _Search:
    """One search; not kept."""

    def __init__(self, problem: Problem, kinds: Kinds) -> None:
        self.problem = problem
        self.kinds = kinds
        # Every worker has a data block, and one machine at least serves.
        self.most = min(int(kinds.size.sum()) - 1, problem.num_data_blocks, int(kinds.most_workers.sum()))

    def run(self) -> RatedConfiguration:
        num_cases = math.prod((self.kinds.most_workers + 1).tolist())
        best, bound_s = self._exact() if num_cases <= _MOST_CASES else self._local()
        if best is None:
            raise PolicyError(
                f"cannot configure {len(self.problem.machines)} executors: got "
                f"{self.problem.num_data_blocks} data blocks and {self.problem.num_parameter_blocks} "
                "parameter blocks; allowed: a worker and a server or more, with one block or more for each, "
                "within their memory; add executors, use more blocks, or raise memory_per_rank"
            )
        return RatedConfiguration(self._configuration(best), best.epoch_s, min(bound_s, best.epoch_s))

    def _exact(self) -> tuple[_Solved | None, float]:
        """Bound all cases from below, and solve them in the order of their bounds."""
        cases = self._cases()
        if not len(cases):
            return None, math.inf
        bounds = self._bounds(cases)
        best: _Solved | None = None
        for number, row in enumerate(np.argsort(bounds, kind="stable")):
            bound_s = float(bounds[row])
            if math.isinf(bound_s) or (best is not None and bound_s >= best.epoch_s * (1 - _ROUNDING)):
                break
            if number == _MOST_SOLVED and best is not None:
                return best, bound_s
            best = _better(best, self.solve(cases[row], best.epoch_s if best else math.inf))
        return best, best.epoch_s if best else math.inf

    def _local(self) -> tuple[_Solved | None, float]:
        """Start from cases that the relaxation cannot exclude, and change workers while that helps."""
        if self.most < 1:
            return None, math.inf
        best: _Solved | None = None
        for num_workers in sorted({1, (1 + self.most) // 2, self.most}):
            share = num_workers / int(self.kinds.size.sum())
            case = (self.kinds.size * share).astype(np.int64)
            best = _better(best, self.solve(self._limited(case), math.inf))
        if best is None:
            return None, math.inf
        relaxation = Relaxation(self.problem, self.kinds, self.most)
        bound_s = relaxation.lower_bound(best.epoch_s)
        order = np.arange(len(self.kinds.size))
        for factor in _FACTORS:
            found = relaxation.reach(bound_s * factor)
            if found is not None:
                order = found[1]
                solved = self.solve(self._limited(found[0]), best.epoch_s)
                best = solved if solved is not None else best
        step = max(1, int(self.kinds.size.max()) // 4)
        left = max(_LEAST_CHANGES, _MOST_CHANGES // len(self.kinds.size))
        while step and left > 0:
            for case in self._neighbours(best.workers, order, step):
                solved = self.solve(case, best.epoch_s)
                left -= 1
                if solved is not None:
                    best = solved
                    break
            else:
                step //= 2
        return best, bound_s

    def solve(self, workers: IntArray, limit_s: float) -> _Solved | None:
        """The best configuration with these numbers of workers; None if none is shorter than `limit_s`."""
        if not 1 <= int(workers.sum()) <= self.most:
            return None
        servers = self.kinds.size - workers
        best: _Solved | None = None
        num_workers = int(workers.sum())
        for serving in sharings(self.kinds, servers, self.problem.num_parameter_blocks):
            times = self._times(num_workers, serving.slowest_s, serving.link_s)
            if best is not None:
                limit_s = min(limit_s, best.epoch_s)
            # Later sharings only get slower at the servers.
            floor = self._times(num_workers, serving.slowest_s, self._fastest_links(servers))
            if not _can_finish(floor, workers, limit_s):
                break
            if not _can_finish(times, workers, limit_s):
                continue
            found = least_epoch(times, workers)
            if found is not None and found[0] < limit_s * (1 - _ROUNDING):
                best = _Solved(found[0], workers, servers, found[1], serving)
        return best

    def _times(
        self, num_workers: IntArray | int, slowest_s: FloatArray | float, link_s: FloatArray
    ) -> WorkerTimes:
        return WorkerTimes(
            self.problem,
            self.kinds.block_s,
            served(self.problem, num_workers) * slowest_s,
            link_s,
            self.kinds.most_data,
        )

    def _fastest_links(self, servers: IntArray) -> FloatArray:
        """Least seconds per byte of the workers' transfers: all blocks on the fastest link."""
        fastest = np.where(servers > 0, self.kinds.link_s, np.inf).min(axis=-1, keepdims=True)
        return np.maximum(self.kinds.link_s, fastest)

    def _cases(self) -> IntArray:
        """All numbers of workers by kind within the limits, shape (num_cases, num_kinds), fewest first."""
        kinds = self.kinds
        ranges = [np.arange(most + 1) for most in kinds.most_workers]
        grid = np.stack(np.meshgrid(*ranges, indexing="ij"), axis=-1).reshape(-1, len(ranges))
        total = grid.sum(axis=1)
        allowed = (total >= 1) & (total <= self.most)
        grid, total = grid[allowed], total[allowed]
        cases: IntArray = grid[np.argsort(total, kind="stable")]
        return cases

    def _bounds(self, cases: IntArray) -> FloatArray:
        """A lower bound of the epoch time of each case; infinite for those that memory excludes.

        Proof: no sharing has a smaller `slowest_s` than `least_slowest`, none has smaller link times than
        all blocks on the fastest link, and epoch times grow with both.
        """
        servers = self.kinds.size - cases
        slowest_s = least_slowest(self.kinds, servers, self.problem.num_parameter_blocks)
        possible = np.isfinite(slowest_s)
        slowest_s = np.where(possible, slowest_s, 0.0)
        times = self._times(cases.sum(axis=1)[:, None], slowest_s[:, None], self._fastest_links(servers))
        goal = self.problem.num_data_blocks
        used = cases > 0
        possible &= (cases * self.kinds.most_data).sum(axis=1) >= goal
        one_s = times.seconds(np.ones_like(cases))
        most_s = times.seconds(np.maximum(1, np.broadcast_to(self.kinds.most_data, cases.shape)))
        low_s, high_s = np.zeros(len(cases)), np.where(used, most_s, 0.0).max(axis=1)
        for _ in range(44):
            middle_s = (low_s + high_s) / 2
            done = (cases * np.maximum(1, times.within(middle_s[:, None]))).sum(axis=1) >= goal
            low_s, high_s = np.where(done, low_s, middle_s), np.where(done, middle_s, high_s)
        return np.where(possible, np.maximum(low_s, np.where(used, one_s, 0.0).max(axis=1)), np.inf)

    def _limited(self, case: IntArray) -> IntArray:
        """The case, with workers added or taken from the last kinds until their number is allowed."""
        case = np.clip(case, 0, self.kinds.most_workers)
        for kind in range(len(case) - 1, -1, -1):
            more = min(max(0, 1 - int(case.sum())), int(self.kinds.most_workers[kind] - case[kind]))
            fewer = min(max(0, int(case.sum()) - self.most), int(case[kind]))
            case[kind] += more - fewer
        return case

    def _neighbours(self, case: IntArray, order: IntArray, step: int) -> Iterator[IntArray]:
        """Cases with up to `step` workers more, fewer, or of another kind, near the end of the workers."""
        kinds = self.kinds
        split = int(np.argmax(case[order] < kinds.most_workers[order]))
        near = order[max(0, split - _NEAR) : split + _NEAR + 1].tolist()
        fewer = {kind: min(step, int(case[kind])) for kind in near}
        more = {kind: min(step, int(kinds.most_workers[kind] - case[kind])) for kind in near}
        for kind in near:
            for change in (more[kind], -fewer[kind]):
                if change:
                    changed = case.copy()
                    changed[kind] += change
                    yield changed
        for kind in near:
            for other in near:
                change = min(more[kind], fewer[other])
                if kind != other and change:
                    changed = case.copy()
                    changed[kind] += change
                    changed[other] -= change
                    yield changed

    def _configuration(self, solved: _Solved) -> Configuration:
        num_machines = len(self.problem.machines)
        data, parameters = [0] * num_machines, [0] * num_machines
        for kind, members in enumerate(self.kinds.members):
            workers, servers = int(solved.workers[kind]), int(solved.servers[kind])
            if workers:
                for machine, blocks in zip(
                    members, split_evenly(int(solved.data[kind]), workers), strict=False
                ):
                    data[machine] = blocks
            if servers:
                blocks_of = split_evenly(int(solved.serving.total[kind]), servers)
                for machine, blocks in zip(members[workers:], blocks_of, strict=False):
                    parameters[machine] = blocks
        return Configuration.of_blocks(data, parameters)


def _can_finish(times: WorkerTimes, workers: IntArray, limit_s: float) -> bool:
    """Whether the workers can complete the data blocks sooner than `limit_s`."""
    if math.isinf(limit_s):
        return True
    sooner_s = limit_s * (1 - _ROUNDING)
    blocks = np.maximum(1, times.within(sooner_s))
    return int((workers * blocks).sum()) >= times.problem.num_data_blocks


def _better(best: _Solved | None, other: _Solved | None) -> _Solved | None:
    if best is None or (other is not None and other.epoch_s < best.epoch_s * (1 - _ROUNDING)):
        return other if other is not None else best
    return best
