"""Ranks of bench_dataplane.py: blocks through the ring, and the same copies and reads with plain NumPy.

They are started under mpirun with one producer (rank 0) and the consumers. Rank 0 reads commands from stdin:
a way of `bench_dataplane.py` and N, such as "ring N", measures N blocks and prints one JSON line; "quit" ends
the ranks. mpirun does not pass on the end of stdin, so "quit" is needed.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import sys
import time
from collections.abc import Callable
from typing import Any

import numpy as np
from mpi4py import MPI
from numpy.typing import NDArray
from ranks.dataplane_handover import hand_over
from ranks.dataplane_in_place import bare_loop, consume_tensor, read_shared

from hpcbal.comm.backoff import Backoff
from hpcbal.data.spec import LabelSpec, SampleSpec
from hpcbal.dataplane import nontemporal
from hpcbal.dataplane.producer import NodeTopology, Producer
from hpcbal.dataplane.reader import StreamReader
from hpcbal.dataplane.ring import NodeRing
from hpcbal.dataplane.stream import StreamPlan, StreamSpec
from hpcbal.values import Position

BLOCKS_PER_PASS = 64
WARM_UP_BLOCKS = 32


class PreparedSource:
    """Returns the samples of one prepared block again and again: the cheapest possible source."""

    def __init__(self, shape: list[int], by_sample: bool) -> None:
        rng = np.random.default_rng(0)
        self._ids = np.arange(BLOCKS_PER_PASS * shape[0])
        self.block = rng.integers(0, 256, shape, np.uint8)
        self._labels = np.arange(shape[0])
        if not by_sample:
            self.samples = self._block_of_samples

    def ids_of_pass(self, pass_index: int) -> NDArray[np.int64]:
        return self._ids

    def sample(self, sample_id: int, pass_index: int, training: bool) -> tuple[NDArray[Any], NDArray[Any]]:
        index = sample_id % len(self.block)
        return self.block[index], self._labels[index : index + 1].reshape(())

    def _block_of_samples(
        self, ids: NDArray[np.int64], pass_index: int, training: bool
    ) -> tuple[NDArray[Any], NDArray[Any]]:
        return self.block[: len(ids)], self._labels[: len(ids)]


def make_spec(shape: list[int], num_slots: int) -> StreamSpec:
    """A stream of blocks of this shape, in a ring of `num_slots`."""
    num_positions = BLOCKS_PER_PASS * shape[0]
    sample = SampleSpec.of(tuple(shape[1:]), "uint8")
    spec = StreamSpec(num_positions, num_positions, shape[0], sample, LabelSpec(), ring_bytes=2**40)
    return dataclasses.replace(spec, ring_bytes=num_slots * spec.slot_bytes)


def produce(world: MPI.Comm, producer: Producer, plan: StreamPlan) -> None:
    """Make blocks until all consumers have theirs."""
    world.Barrier()
    producer.start(plan)
    finished, backoff = world.Ibarrier(), Backoff.patient()
    while not finished.Test():
        if producer.step():
            backoff.reset()
        else:
            backoff.wait()
    producer.stop()
    while producer.active:
        producer.step()


def consume(
    world: MPI.Comm,
    reader: StreamReader,
    spec: StreamSpec,
    plan: StreamPlan,
    num_blocks: int,
    take: Callable[[StreamReader, int, int, int], None],
) -> float:
    """Take blocks, each a pass with start and stop; returns the seconds after warming up."""
    reader.begin(plan, Position(0))
    world.Barrier()
    began = 0.0
    for block in range(WARM_UP_BLOCKS + num_blocks):
        if block == WARM_UP_BLOCKS:
            began = time.perf_counter()
        pass_index, inside = divmod(block, BLOCKS_PER_PASS)
        start = inside * spec.block_samples
        take(reader, pass_index, start, start + spec.block_samples)
    took_s = time.perf_counter() - began
    reader.end()
    await_all(world)
    return took_s


def copier(spec: StreamSpec) -> Callable[[StreamReader, int, int, int], None]:
    """Copies blocks into this process's memory."""
    buffer = spec.empty_batch(spec.block_samples)

    def take(reader: StreamReader, pass_index: int, start: int, stop: int) -> None:
        reader.read(pass_index, start, stop, out=buffer)
        reader.release(pass_index, stop)

    return take


def copy(world: MPI.Comm, block: NDArray[np.uint8], num_blocks: int) -> float:
    """Copy one block again and again; returns the seconds after warming up."""
    target = np.empty_like(block)
    for _ in range(WARM_UP_BLOCKS):
        np.copyto(target, block)
    world.Barrier()
    began = time.perf_counter()
    for _ in range(num_blocks):
        np.copyto(target, block)
    took_s = time.perf_counter() - began
    await_all(world)
    return took_s


def copy_shared(world: MPI.Comm, ring: NodeRing, block: NDArray[np.uint8], num_blocks: int) -> float:
    """The ring's copies without its order: rank 0 writes all slots; the others copy without waiting."""
    slots, target = ring.slots, np.empty_like(block)
    world.Barrier()
    began = time.perf_counter()
    for number in range(num_blocks):
        shared = slots[number % len(slots)].x
        if world.rank == 0:
            np.copyto(shared, block)
        else:
            np.copyto(target, shared)
    took_s = time.perf_counter() - began
    await_all(world)
    return took_s


def await_all(world: MPI.Comm) -> None:
    """A barrier that leaves the cores to the ranks that still work."""
    request = world.Ibarrier()
    while not request.Test():
        time.sleep(1e-3)


def next_command(world: MPI.Comm) -> list[str]:
    """The next line of rank 0's stdin, on all ranks; waiting uses no core."""
    line = np.zeros(32, np.uint8)
    if world.rank == 0:
        text = sys.stdin.readline().encode()
        line[: len(text)] = np.frombuffer(text, np.uint8)
    request = world.Ibcast(line)
    while not request.Test():
        time.sleep(2e-3)
    return bytes(line).rstrip(b"\0").decode().split()


def answer(world: MPI.Comm, facts: dict[str, float]) -> None:
    """Print one JSON line, from rank 0."""
    if world.rank == 0:
        print(json.dumps(facts), flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--shape", type=int, nargs="+", required=True, help="shape of a block, samples first")
    parser.add_argument("--num-slots", type=int, default=4)
    parser.add_argument("--by-sample", action="store_true", help="ask the source for one sample at a time")
    args = parser.parse_args()
    world = MPI.COMM_WORLD
    spec = make_spec(args.shape, args.num_slots)
    source = PreparedSource(args.shape, args.by_sample)
    comm = world.Dup()
    with NodeRing.create(world, spec, world.size - 1, 1) as ring:
        topology = NodeTopology((0,) * world.size, (0,))
        producer = Producer(ring, comm, topology, source, 0) if world.rank == 0 else None
        reader = None if world.rank == 0 else StreamReader(ring, world.rank - 1)
        generation = 0
        while (command := next_command(world))[0] != "quit":
            num_blocks, took_s, busy_s = int(command[1]), 0.0, time.process_time()
            if command[0].endswith("handover"):
                write = np.copyto if command[0] == "plain_handover" else nontemporal.write
                answer(world, hand_over(world, ring, source.block, num_blocks, write))
                continue
            if command[0] == "memcpy":
                took_s = copy(world, source.block, num_blocks)
            elif command[0] == "shared":
                took_s = copy_shared(world, ring, source.block, num_blocks)
            elif command[0] == "reads":
                took_s = read_shared(world, ring, num_blocks, WARM_UP_BLOCKS)
                await_all(world)
            elif command[0] == "bare":
                generation += 1
                took_s = bare_loop(world, ring, source.block, generation, num_blocks, WARM_UP_BLOCKS)
                await_all(world)
            else:
                generation += 1
                plan = StreamPlan(generation, 0, 0, (0,), (0,))
                if producer is not None:
                    produce(world, producer, plan)
                if reader is not None:
                    take = consume_tensor if command[0] == "in_place" else copier(spec)
                    took_s = consume(world, reader, spec, plan, num_blocks, take)
            busy_s = world.allreduce(time.process_time() - busy_s)
            slowest_s = world.allreduce(took_s, MPI.MAX)
            cpu_us = 1e6 * busy_s / (num_blocks + WARM_UP_BLOCKS)
            answer(world, {"blocks_per_s": num_blocks / slowest_s, "cpu_us_per_block": cpu_us})
    comm.Free()


if __name__ == "__main__":
    main()
