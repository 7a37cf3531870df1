"""Epoch times of workers as a function of their data blocks, and the other way round."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from hpcbal.policies.configuring.cost_model import Problem, served_bytes
from hpcbal.policies.configuring.homogeneous import FloatArray, IntArray

_ROUNDING = 1e-12
"""Relative error of a time that two ways of computing it may differ by."""
_WHOLE = 1e-9
_NEVER = 1e-300
"""Seconds: as good as none, and no division by zero."""


def served(problem: Problem, num_workers: IntArray | int) -> FloatArray:
    """`served_bytes` for many numbers of workers."""
    number = np.asarray(num_workers)
    least, most = int(number.min()), int(number.max())
    table = np.array([served_bytes(problem, max(1, each)) for each in range(least, most + 1)])
    return np.asarray(table[number - least])


@dataclass(frozen=True, slots=True, eq=False)
class WorkerTimes:
    """Epoch times of kinds of workers that share servers; never decreasing in the number of blocks.

    Arrays broadcast: a time may have one entry per kind, or a row of kinds for each of many cases.

    Attributes:
        problem: the job.
        block_s: compute time of a data block.
        served_s: time to serve what `served` counts.
        link_s: seconds per byte of the worker's own transfers, over all servers.
        most: most data blocks.
    """

    problem: Problem
    block_s: FloatArray
    served_s: FloatArray | float
    link_s: FloatArray
    most: IntArray

    def seconds(self, blocks: IntArray) -> FloatArray:
        """Epoch time with this many data blocks, >= 1; see `epoch_cost`."""
        problem = self.problem
        samples = blocks * problem.samples_per_block
        if problem.turns == "shared":
            turns = np.asarray(float(problem.shared_turns))
            moved = turns * problem.turn_bytes + samples * problem.bytes_per_sample
            served_s = np.asarray(self.served_s)
        else:
            turns = np.maximum(1.0, np.ceil(samples / problem.mini_batch - _WHOLE))
            moved = turns * problem.full_turn_bytes
            served_s = turns * self.served_s
        own_s = self.block_s * blocks + moved * self.link_s + turns * problem.turn_overhead_s
        return np.asarray(own_s + served_s if problem.has_barrier else np.maximum(own_s, served_s))

    def within(self, deadline_s: FloatArray | float) -> IntArray:
        """Most data blocks that a worker completes by the deadline, 0..most."""
        problem, size = self.problem, self.problem.samples_per_block
        limit_s = np.asarray(deadline_s) * (1.0 + _ROUNDING)
        if problem.turns == "shared":
            turns = problem.shared_turns
            left_s = deadline_s - turns * (problem.turn_overhead_s + problem.turn_bytes * self.link_s)
            if problem.has_barrier:
                left_s = left_s - self.served_s
            exact = left_s / (self.block_s + size * problem.bytes_per_sample * self.link_s)
            if not problem.has_barrier:
                in_time = np.asarray(self.served_s) <= limit_s
                exact = np.where(in_time, exact, 0.0)
        else:
            sample_s = self.block_s / size
            turn_s = problem.full_turn_bytes * self.link_s + problem.turn_overhead_s
            full_s = problem.mini_batch * sample_s + turn_s
            turns_done = np.floor(deadline_s / full_s)
            rest_s = deadline_s - turns_done * full_s - turn_s
            last = np.clip(rest_s / sample_s, 0.0, problem.mini_batch)
            # Beyond the turns of all samples, how many are served does not matter.
            most_turns = self.problem.num_samples / problem.mini_batch + 1.0
            of_one_s = np.maximum(self.served_s, _NEVER)
            served_turns = np.floor(np.minimum(limit_s / of_one_s, most_turns))
            own = turns_done * problem.mini_batch + last
            exact = np.minimum(own, served_turns * problem.mini_batch) / size
        most = np.broadcast_to(self.most, exact.shape)
        blocks = np.clip(np.floor(np.minimum(exact + 0.5, most)), 0, most).astype(np.int64)
        # `exact` has rounding errors: the time itself decides between a number and the one below.
        late = (blocks > 0) & (self.seconds(np.maximum(blocks, 1)) > limit_s)
        return np.where(late, blocks - 1, blocks)


def least_epoch(times: WorkerTimes, count: IntArray) -> tuple[float, IntArray] | None:
    """The shortest time in which the workers complete all data blocks, and the blocks of each kind.

    Found by bisection; each probe moves its bound to the next time that some worker takes, so the search
    ends at the exact optimum for whole blocks. Every worker has at least one block. If servers set the pace,
    many sharings take the same time; then the one whose workers are done first by themselves is returned.

    Args:
        count: workers of each kind.

    Returns: the epoch time, and the blocks of all workers of each kind together; within a kind they are
        spread evenly. None if there are more workers than blocks, or memory cannot hold the blocks.
    """
    goal = times.problem.num_data_blocks
    used = count > 0
    num_workers = int(count.sum())
    if not 1 <= num_workers <= goal or int((count * np.where(used, times.most, 0)).sum()) < goal:
        return None
    if not times.problem.has_barrier:
        most = np.where(used, np.maximum(1, times.within(_deadline(times, count))), times.most)
        unserved = replace(times, served_s=0.0, most=most)
        total = _filled(unserved, count, _deadline(unserved, count))
    else:
        total = _filled(times, count, _deadline(times, count))
    return _slowest(times, count, total), total


def _deadline(times: WorkerTimes, count: IntArray) -> float:
    """The least time by which the workers complete all data blocks; a worker of one block may be later."""
    goal = times.problem.num_data_blocks
    used = count > 0
    most = np.where(used, times.most, 0)
    even = np.minimum(-(-goal // int(count.sum())), most)
    low_s, high_s = 0.0, float(times.seconds(np.maximum(even, 1))[used].max())
    while int((count * np.maximum(1, times.within(high_s))).sum()) < goal:
        low_s, high_s = high_s, 2.0 * high_s
    while high_s - low_s > _ROUNDING * high_s:
        middle_s = low_s + (high_s - low_s) / 2
        blocks = np.maximum(1, times.within(middle_s))
        if int((count * blocks).sum()) >= goal:
            level_s = float(times.seconds(blocks)[used & (blocks > 1)].max(initial=0.0))
            high_s = max(low_s, min(middle_s, level_s))
        else:
            more_s = times.seconds(np.minimum(blocks + 1, np.maximum(most, 1)))
            low_s = float(more_s[used & (blocks < most)].min())
    return high_s


def _filled(times: WorkerTimes, count: IntArray, deadline_s: float) -> IntArray:
    """Blocks of each kind that end by the least deadline; times must increase with every block."""
    goal, used = times.problem.num_data_blocks, count > 0
    blocks = np.maximum(1, times.within(deadline_s))
    total = np.where(used, count * blocks, 0)
    excess = int(total.sum()) - goal
    # Only workers that complete their last block just in time have one to give away.
    order = np.argsort(-np.where(used & (blocks > 1), times.seconds(blocks), -1.0), kind="stable")
    for kind in order:
        given = min(excess, int(count[kind]) if blocks[kind] > 1 else 0)
        total[kind] -= given
        excess -= given
    assert excess == 0, "only workers at the level can have blocks too many"
    return total


def _slowest(times: WorkerTimes, count: IntArray, total: IntArray) -> float:
    used = count > 0
    largest = -(-total // np.maximum(count, 1))
    return float(times.seconds(np.maximum(largest, 1))[used].max())
