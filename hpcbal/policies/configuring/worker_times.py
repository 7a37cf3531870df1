"""Epoch times of workers as a function of their data blocks, and the other way round."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from hpcbal.policies.configuring.cost_model import Problem
from hpcbal.policies.configuring.kinds import FloatArray, IntArray

_ROUNDING = 1e-12
"""Relative error of a time that two ways of computing it may differ by."""
_WHOLE = 1e-9


def served_bytes(problem: Problem, num_workers: IntArray | int) -> FloatArray:
    """Bytes that all servers move together: in a turn of all workers, or in an epoch of shared turns."""
    number = np.asarray(num_workers, np.float64)
    if problem.turns == "per_worker":
        return np.asarray(number * problem.full_turn_bytes)
    per_worker = problem.shared_turns * problem.turn_bytes
    return np.asarray(number * per_worker + problem.num_samples * problem.bytes_per_sample)


@dataclass(frozen=True, slots=True, eq=False)
class WorkerTimes:
    """Epoch times of kinds of workers that share servers; strictly increasing in the number of blocks.

    Arrays broadcast: a time may have one entry per kind, or a row of kinds for each of many cases.

    Attributes:
        problem: the job.
        block_s: compute time of a data block.
        served_s: time to serve all workers: in one turn of each (`per_worker`), or in the epoch (`shared`).
        link_s: seconds per byte of the worker's own transfers, over all servers.
        most: most data blocks.
    """

    problem: Problem
    block_s: FloatArray
    served_s: FloatArray | float
    link_s: FloatArray
    most: IntArray

    def seconds(self, blocks: IntArray) -> FloatArray:
        """Epoch time with this many data blocks, >= 1; [PS] Eq. 3.2 to 3.4."""
        problem = self.problem
        samples = blocks * problem.samples_per_block
        if problem.turns == "shared":
            moved = problem.shared_turns * problem.turn_bytes + samples * problem.bytes_per_sample
            communication_s = np.maximum(self.served_s, moved * self.link_s)
            overhead_s = problem.shared_turns * problem.turn_overhead_s
            return np.asarray(self.block_s * blocks + communication_s + overhead_s)
        turns = np.maximum(1.0, np.ceil(samples / problem.mini_batch - _WHOLE))
        return np.asarray(self.block_s * blocks + turns * self._turn_s())

    def within(self, deadline_s: FloatArray | float) -> IntArray:
        """Most data blocks that a worker completes by the deadline, 0..most."""
        problem = self.problem
        if problem.turns == "shared":
            turns, size = problem.shared_turns, problem.samples_per_block
            rest_s = deadline_s - turns * problem.turn_overhead_s
            served = (rest_s - self.served_s) / self.block_s
            moved = (rest_s - turns * problem.turn_bytes * self.link_s) / (
                self.block_s + size * problem.bytes_per_sample * self.link_s
            )
            exact = np.minimum(served, moved)
        else:
            sample_s = self.block_s / problem.samples_per_block
            turn_s = self._turn_s()
            full_s = problem.mini_batch * sample_s + turn_s
            turns_done = np.floor(deadline_s / full_s)
            rest_s = deadline_s - turns_done * full_s - turn_s
            last = np.clip(rest_s / sample_s, 0.0, problem.mini_batch)
            exact = (turns_done * problem.mini_batch + last) / problem.samples_per_block
        most = np.broadcast_to(self.most, exact.shape)
        blocks = np.clip(np.floor(np.minimum(exact + 0.5, most)), 0, most).astype(np.int64)
        limit_s = np.asarray(deadline_s) * (1.0 + _ROUNDING)
        # `exact` has rounding errors: the time itself decides between a number and the one below.
        late = (blocks > 0) & (self.seconds(np.maximum(blocks, 1)) > limit_s)
        return np.where(late, blocks - 1, blocks)

    def _turn_s(self) -> FloatArray:
        own_s = self.problem.full_turn_bytes * self.link_s
        return np.asarray(np.maximum(self.served_s, own_s)) + self.problem.turn_overhead_s


def least_epoch(times: WorkerTimes, count: IntArray) -> tuple[float, IntArray] | None:
    """The shortest time in which the workers complete all data blocks, and the blocks of each kind.

    Found by bisection; each probe moves its bound to the next time that some worker takes, so the search
    ends at the exact optimum for whole blocks. Every worker has at least one block.

    Args:
        count: workers of each kind.

    Returns: the epoch time, and the blocks of all workers of each kind together; within a kind they are
        spread evenly. None if there are more workers than blocks, or memory cannot hold the blocks.
    """
    goal = times.problem.num_data_blocks
    used = count > 0
    most = np.where(used, times.most, 0)
    num_workers = int(count.sum())
    if not 1 <= num_workers <= goal or int((count * most).sum()) < goal:
        return None
    one = np.ones_like(count)
    first_s = float(times.seconds(one)[used].max())
    even = np.minimum(-(-goal // num_workers), most)
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
    blocks = np.maximum(1, times.within(high_s))
    total = np.where(used, count * blocks, 0)
    excess = int(total.sum()) - goal
    # Only workers that complete their last block just in time have one to give away.
    order = np.argsort(-np.where(used & (blocks > 1), times.seconds(blocks), -1.0), kind="stable")
    for kind in order:
        given = min(excess, int(count[kind]) if blocks[kind] > 1 else 0)
        total[kind] -= given
        excess -= given
    assert excess == 0, "only workers at the level can have blocks too many"
    return max(first_s, _slowest(times, count, total)), total


def _slowest(times: WorkerTimes, count: IntArray, total: IntArray) -> float:
    used = count > 0
    largest = -(-total // np.maximum(count, 1))
    return float(times.seconds(np.maximum(largest, 1))[used].max())
