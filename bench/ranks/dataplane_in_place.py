"""Reading blocks where they lie: from the ring as a tensor, in a bare loop, and without any order.

Every consumer reads every byte of every block once (`read_all`).
"""

from __future__ import annotations

import os
import time
from typing import Any

import numpy as np
from mpi4py import MPI
from numpy.typing import NDArray

from hpcbal.dataplane.reader import StreamReader
from hpcbal.dataplane.ring import BLOCK_BITS, INACTIVE, NodeRing
from hpcbal.values.selection import Selection


def read_all(block: NDArray[Any]) -> int:
    """Read every byte of a contiguous block once, in the fastest way that NumPy has."""
    return int(np.maximum.reduce(block.reshape(-1).view(np.uint8)))


def consume_tensor(reader: StreamReader, pass_index: int, start: int, stop: int) -> None:
    """Take a block as a step does: in place, as a tensor, released when it has been read."""
    from hpcbal.training.predicting import handed_over  # imports TensorFlow, which the producer never does

    batch = reader.read_selection(pass_index, Selection(start, stop), in_place=True)
    tensor = handed_over(np.asarray(batch.x))
    read_all(np.asarray(memoryview(tensor)))  # the tensor's own buffer, not a copy
    reader.release(pass_index, stop)


def read_shared(world: MPI.Comm, ring: NodeRing, num_blocks: int, num_warm_up: int) -> float:
    """Read the ring's slots one after another, in no order with the other ranks; returns the seconds."""
    slots = [slot.x for slot in ring.slots]
    for number in range(num_warm_up):
        read_all(slots[number % len(slots)])
    world.Barrier()
    began = time.perf_counter()
    for number in range(num_blocks):
        read_all(slots[number % len(slots)])
    return time.perf_counter() - began


def bare_loop(
    world: MPI.Comm,
    ring: NodeRing,
    block: NDArray[np.uint8],
    generation: int,
    num_blocks: int,
    num_warm_up: int,
) -> float:
    """The ring's order and nothing else: stamp, write, cursor, `sched_yield`; returns the seconds.

    The writer is rank 0; it writes with the same function as the ring's producer.
    """
    slots, stamps, cursors = ring.slots, ring._stamps, ring._cursors
    if world.rank:
        cursors[world.rank - 1][0] = 0
    world.Barrier()
    began = 0.0
    for number in range(num_warm_up + num_blocks):
        slot = number % len(slots)
        stamp = generation << BLOCK_BITS | number + 1
        if number == num_warm_up:
            began = time.perf_counter()
        if world.rank == 0:
            while min([cursor[0] for cursor in cursors]) <= number - len(slots):
                os.sched_yield()
            ring.sync()
            slots[slot]._write(slots[slot].x, block)
            ring.sync()
            stamps[slot][0] = stamp
        else:
            while stamps[slot][0] != stamp:
                os.sched_yield()
            ring.sync()
            read_all(slots[slot].x)
            ring.sync()
            cursors[world.rank - 1][0] = number + 1
    took_s = time.perf_counter() - began
    if world.rank:
        cursors[world.rank - 1][0] = INACTIVE
    return took_s
