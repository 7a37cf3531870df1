"""The cost of handing a block from core to core: the ring's copies strictly in turn, each timed.

Rank 0 writes a slot, then one rank after the other copies it out, and only these copies are timed. The ranks
are spread over the cores, so that each copy finds the cache lines where the rank before it has left them.
Meanwhile all others sleep in a read of a named pipe, so no polling takes time or cache lines from the rank
whose turn it is.
"""

from __future__ import annotations

import contextlib
import os
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator

import numpy as np
from mpi4py import MPI
from numpy.typing import NDArray

from hpcbal.dataplane.ring import NodeRing

Write = Callable[[NDArray[np.uint8], NDArray[np.uint8]], None]
NUM_WARM_UP = 8


class Turns:
    """A token that travels around the ranks of one node through named pipes."""

    def __init__(self, own: int, following: int, has_token: bool) -> None:
        """Use `turns` to create one."""
        self._own = own
        self._following = following
        if has_token:
            os.write(own, b"t")

    @contextlib.contextmanager
    def mine(self) -> Iterator[None]:
        """Sleep until it is this rank's turn; then pass the turn to the next rank."""
        os.read(self._own, 1)
        yield
        os.write(self._following, b"t")


@contextlib.contextmanager
def turns(world: MPI.Intracomm) -> Iterator[Turns]:
    """Make the pipes, one per rank; collective."""
    with contextlib.ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory()) if world.rank == 0 else None
        folder = world.bcast(folder)
        os.mkfifo(f"{folder}/{world.rank}")
        world.Barrier()
        # For reading and writing, so that opening does not wait for the other side.
        own, following = (
            os.open(f"{folder}/{rank % world.size}", os.O_RDWR) for rank in (world.rank, world.rank + 1)
        )
        stack.callback(os.close, own)
        stack.callback(os.close, following)
        world.Barrier()
        yield Turns(own, following, world.rank == 0)
        world.Barrier()


@contextlib.contextmanager
def on_core_of_its_own(world: MPI.Intracomm) -> Iterator[int]:
    """Bind neighbouring ranks to different cores in this block; yields the number of cores. Collective."""
    before = os.sched_getaffinity(0)
    cores = sorted(set().union(*world.allgather(before)))
    os.sched_setaffinity(0, {cores[world.rank % len(cores)]})
    yield len(cores)
    os.sched_setaffinity(0, before)


def hand_over(
    world: MPI.Intracomm, ring: NodeRing, block: NDArray[np.uint8], num_blocks: int, write: Write
) -> dict[str, float]:
    """Copy in turn; returns the times of the copies, and the rate that they allow.

    Args:
        world: the ranks of one node; rank 0 writes, the others read.
        ring: its slots are used in turn.
        block: the data to write.
        num_blocks: >= 1, after warming up.
        write: writes a block into a slot.

    Returns:
        `write_us` and `read_us` of one rank, the median over the blocks (and readers); `cpu_us_per_block`,
        the sum over the ranks; `blocks_per_s`, the highest rate at this cost: all cores busy with these
        copies only, and no rank faster than its own copies.
    """
    target = np.empty_like(block)
    took_us = []
    with on_core_of_its_own(world) as num_cores, turns(world) as token:
        for number in range(NUM_WARM_UP + num_blocks):
            slot = ring.slots[number % len(ring.slots)].x
            with token.mine():
                began = time.perf_counter()
                if world.rank == 0:
                    write(slot, block)
                else:
                    np.copyto(target, slot)
                took_us.append(1e6 * (time.perf_counter() - began))
    of_ranks = world.allgather(statistics.median(took_us[NUM_WARM_UP:]))
    return {
        "write_us": of_ranks[0],
        "read_us": statistics.median(of_ranks[1:]),
        "cpu_us_per_block": sum(of_ranks),
        "blocks_per_s": 1e6 * min(num_cores / sum(of_ranks), 1 / max(of_ranks)),
    }
