"""A writer and readers in processes of their own over one ring; a reader dies with a batch in its hands.

Prints JSON: the exit codes of all readers (minus the signal that killed one), how often each found a batch
whole, whether the batch of the dead one was still whole at the end, and how many blocks were made.
"""

from __future__ import annotations

import json
import mmap
import os
import signal
import threading
import time
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hpcbal.data.spec import LabelSpec, SampleSpec
from hpcbal.dataplane.producer import NodeTopology, Producer
from hpcbal.dataplane.reader import StreamReader
from hpcbal.dataplane.replication import OneNode
from hpcbal.dataplane.ring import BLOCK_MASK, NodeRing
from hpcbal.dataplane.shared_memory import SharedMemory
from hpcbal.dataplane.stream import StreamPlan, StreamSpec
from hpcbal.events.history import Position
from hpcbal.policies.selection import Selection

NUM_READERS, DOOMED, DIES_AT = 4, 3, 300
BLOCK, CELLS, BLOCKS_PER_PASS = 4, 6, 50
NUM_MADE = DIES_AT + CELLS
"""The dead reader holds block `DIES_AT`, so the writer stops before it would come to that cell again."""

LENGTH = 2048
NUM_TRIES = 2000
"""Of the writer to go on, when all readers have ended."""


class Numbers:
    """Samples that are their id plus 1000 per pass."""

    def ids_of_pass(self, pass_index: int) -> NDArray[np.int64]:
        return np.arange(BLOCKS_PER_PASS * BLOCK)

    def sample(self, sample_id: int, pass_index: int, training: bool) -> tuple[NDArray[Any], NDArray[Any]]:
        return np.full(LENGTH, sample_id + 1000 * pass_index, np.int32), np.array(sample_id)


def is_whole(batch: NDArray[Any], block: int) -> bool:
    pass_index, inside = divmod(block, BLOCKS_PER_PASS)
    wanted = inside * BLOCK + np.arange(BLOCK) + 1000 * pass_index
    return bool((batch == wanted[:, None]).all())


def make_ring(spec: StreamSpec) -> NodeRing:
    """A ring in memory that forked processes share."""
    num_words = NUM_READERS + 1 + spec.num_cells
    memory = np.frombuffer(mmap.mmap(-1, 64 * (1 + num_words) + spec.ring_bytes), np.uint8)
    fence = threading.Lock()

    def sync() -> None:
        with fence:  # orders memory on processors that need it
            pass

    def add(offset: int, number: int) -> int:
        raise RuntimeError("a ring counts nothing")

    ring = NodeRing(SharedMemory(memory, sync, add), spec, NUM_READERS, 1)
    ring._clear()
    return ring


def read(ring: NodeRing, index: int, plan: StreamPlan, num_whole: NDArray[np.int64]) -> None:
    """Hold each batch for a while, as a step does."""
    random = np.random.default_rng(index)
    reader = StreamReader(ring, index)
    reader.begin(plan, Position(0))
    num_whole[index] = 0
    for block in range(NUM_MADE):
        pass_index, inside = divmod(block, BLOCKS_PER_PASS)
        here = Selection(inside * BLOCK, (inside + 1) * BLOCK)
        batch = reader.read_selection(pass_index, here, in_place=True)
        assert np.shares_memory(batch.x, ring.samples)
        if index == DOOMED and block == DIES_AT:
            os.kill(os.getpid(), signal.SIGKILL)
        for _ in range(random.integers(1, 4)):
            assert is_whole(np.asarray(batch.x), block)
            os.sched_yield()
        num_whole[index] += 1
        reader.release(pass_index, here.stop)
    reader.end()


def main() -> None:
    sample = SampleSpec.of((LENGTH,), "int32")
    sizes = (BLOCKS_PER_PASS * BLOCK, BLOCKS_PER_PASS * BLOCK, BLOCK, sample, LabelSpec())
    cell_bytes = StreamSpec(*sizes, ring_bytes=2**30).cell_bytes
    ring = make_ring(StreamSpec(*sizes, ring_bytes=CELLS * cell_bytes))
    num_whole = np.frombuffer(mmap.mmap(-1, 8 * NUM_READERS), np.int64)
    num_whole[:] = -1
    plan = StreamPlan(1, 0, 0, (0,), (0,))
    codes: dict[int, int | None] = {}
    for index in range(NUM_READERS):
        child = os.fork()
        if child == 0:
            read(ring, index, plan, num_whole)
            os._exit(0)
        codes[child] = None
    while (num_whole < 0).any():
        time.sleep(1e-3)
    producer = Producer(ring, OneNode(0), NodeTopology((0,), (0,)), Numbers(), 0)
    producer.start(plan)
    while None in codes.values():
        producer.step()
        for child, code in codes.items():
            ended, status = os.waitpid(child, os.WNOHANG) if code is None else (0, 0)
            if ended:
                codes[child] = os.waitstatus_to_exitcode(status)
        os.sched_yield()
    for _ in range(NUM_TRIES):
        producer.step()
    facts = {
        "codes": list(codes.values()),
        "num_whole": num_whole.tolist(),
        "is_held_batch_whole": is_whole(ring.cells[DIES_AT % CELLS].x, DIES_AT),
        "num_made": ring._marks[0][0] & BLOCK_MASK,
        "num_wanted": NUM_MADE,
    }
    print(json.dumps(facts))


if __name__ == "__main__":
    main()
