"""Many rounds, each stopped at a random moment, over emulated nodes; every sample read is checked.

Each round draws its producers, its start, and how far each reader goes before it leaves.
"""

from __future__ import annotations

import time
from functools import partial

import numpy as np
from dataplane_harness import Cast, FakeSource, Nodes
from mpi4py import MPI

from hpcbal.dataplane.producer import Producer
from hpcbal.dataplane.reader import StreamReader
from hpcbal.dataplane.stream import StreamPlan
from hpcbal.events.history import Position

NUM_ROUNDS, SEED = 40, 7


def restart(world: MPI.Intracomm, nodes: Nodes, shape: tuple[int | None, ...]) -> None:
    source = FakeSource(23, 34, shape, bad_every=6)
    spec = source.spec(block_samples=4, num_cells=3)
    cast = Cast(world, nodes, spec)
    actor: Producer | StreamReader = cast.producer(source) if cast.is_producer else cast.reader()
    own = np.random.default_rng([SEED, world.rank])
    common = np.random.default_rng(SEED)  # draws the same on all ranks
    for generation in range(1, NUM_ROUNDS + 1):
        first_pass = int(common.integers(0, 50))
        offset = int(common.integers(0, spec.num_positions + 1))
        num = int(common.integers(1, len(cast.producers) + 1))
        producers = tuple(int(p) for p in common.permutation(cast.producers)[:num])
        source.delay_s = float(common.choice([0, 0, 2e-4]))
        start = Position(first_pass, offset)
        first_block = min(offset // spec.block_samples, spec.blocks_per_pass - 1)
        if offset == spec.num_positions:
            first_block = spec.blocks_per_pass
        plan = StreamPlan(generation, first_pass, first_block, producers, cast.training_nodes)
        cast.run_round(plan, actor, partial(wander, source, start, own), start)
    cast.close()


def wander(source: FakeSource, start: Position, rng: np.random.Generator, reader: StreamReader) -> None:
    """Read, skip and pause at random from `start` on, then leave wherever that has led."""
    pass_index, offset = start.pass_index, start.offset
    for _ in range(int(rng.integers(0, 25))):
        if offset == source.num_positions:
            pass_index, offset = pass_index + 1, 0
        end = min(offset + int(rng.integers(0, 9)), source.num_positions)
        action = rng.integers(0, 6)
        if action < 4:
            source.check(reader.read(pass_index, offset, end), pass_index, offset, end)
        elif action == 4:
            time.sleep(1e-3)
        reader.release(pass_index, end)  # action 5: a rank whose share of a step is empty
        offset = end
