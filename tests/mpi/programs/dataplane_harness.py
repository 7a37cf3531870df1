"""Emulated nodes with producers and readers on one machine, and a source whose content is known."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import cast

import numpy as np
from mpi4py import MPI

from hpcbal.comm.backoff import Backoff
from hpcbal.comm.mpi import wait_for
from hpcbal.data.dataset import BadSample
from hpcbal.data.spec import LabelSpec, SampleSpec
from hpcbal.dataplane.producer import NodeTopology, Producer
from hpcbal.dataplane.reader import Batch, StreamReader
from hpcbal.dataplane.ring import NodeRing
from hpcbal.dataplane.stream import StreamPlan, StreamSpec
from hpcbal.events.history import Position
from hpcbal.policies.selection import Selection

Nodes = Sequence[tuple[int, int]]
"""(producers, readers) of each node."""


@dataclass
class FakeSource:
    """Sample i of pass p is filled with a value that encodes i, p and whether it is for training."""

    num_train: int
    num_positions: int
    shape: tuple[int | None, ...] = (5, 3)
    bad_every: int = 0
    delay_s: float = 0.0
    reads: dict[tuple[int, int], int] = field(default_factory=dict)

    def ids_of_pass(self, pass_index: int) -> np.ndarray:
        train = np.random.default_rng(pass_index).permutation(self.num_train)
        return np.concatenate([train, np.arange(self.num_train, self.num_positions)]).astype(np.int64)

    def sample(self, sample_id: int, pass_index: int, training: bool) -> tuple[np.ndarray, np.ndarray]:
        self.reads[sample_id, pass_index] = self.reads.get((sample_id, pass_index), 0) + 1
        if self.delay_s:
            time.sleep(self.delay_s)
        if self.is_bad(sample_id):
            raise BadSample(sample_id, f"file-{sample_id}", "made so")
        return self.expected(sample_id, pass_index, training), np.array([sample_id, pass_index], np.int32)

    def is_bad(self, sample_id: int) -> bool:
        return self.bad_every > 0 and sample_id % self.bad_every == 1

    def expected(self, sample_id: int, pass_index: int, training: bool) -> np.ndarray:
        shape = [1 + sample_id % 7 if length is None else length for length in self.shape]
        value = 4 * (sample_id + 1000 * pass_index) + (1 if training else 2)
        return value + 0.001 * np.arange(np.prod(shape)).reshape(shape)

    def spec(self, block_samples: int, num_cells: int) -> StreamSpec:
        bound = np.prod([7 if length is None else length for length in self.shape]) * 8
        sample = SampleSpec.of(self.shape, "float64", int(bound))
        sizes = (self.num_train, self.num_positions, block_samples, sample, LabelSpec((2,), "int32"))
        cell_bytes = StreamSpec(*sizes, ring_bytes=2**30).cell_bytes
        return StreamSpec(*sizes, ring_bytes=num_cells * cell_bytes)

    def check(self, batch: Batch, pass_index: int, start: int, stop: int) -> None:
        """Whether `batch` is exactly the valid samples of these positions."""
        ids = self.ids_of_pass(pass_index)[start:stop]
        training = np.arange(start, stop) < self.num_train
        good = np.array([not self.is_bad(int(i)) for i in ids], bool)
        np.testing.assert_array_equal(batch.ids, ids[good])
        np.testing.assert_array_equal(batch.y, [(i, pass_index) for i in ids[good]] or np.empty((0, 2)))
        assert len(batch.x) == good.sum()
        for x, sample_id, trains in zip(batch.x, ids[good], training[good], strict=True):
            np.testing.assert_array_equal(x, self.expected(int(sample_id), pass_index, bool(trains)))


class Cast:
    """Ranks with roles: on each node first its producers, then its readers.

    Args:
        world: all ranks of the case; owned by the caller.
        nodes: (producers, readers) of each node; their sum is the number of ranks.
    """

    def __init__(self, world: MPI.Intracomm, nodes: Nodes, spec: StreamSpec) -> None:
        self.world = world
        members = [(n, i) for n, sizes in enumerate(nodes) for i in range(sum(sizes))]
        assert len(members) == self.world.size, (members, self.world.size)
        self.node, place = members[self.world.rank]
        num_producers, num_readers = nodes[self.node]
        self.is_producer = place < num_producers
        self.index = place if self.is_producer else place - num_producers
        first = [members.index((n, 0)) for n in range(len(nodes))]
        self.topology = NodeTopology(tuple(n for n, _ in members), tuple(first))
        self.producers = tuple(r for r, (n, i) in enumerate(members) if i < nodes[n][0])
        self.training_nodes = tuple(n for n, sizes in enumerate(nodes) if sizes[1])
        self.comm = self.world.Dup()
        self.spec = spec
        self.node_comm = cast(MPI.Intracomm, self.world.Split(self.node, self.world.rank))
        self.peers: MPI.Comm = self.world.Split(0 if self.is_producer else 1)
        self.ring = NodeRing.create(self.node_comm, spec, num_readers, num_producers)

    def producer(self, source: FakeSource) -> Producer:
        return Producer(self.ring, self.comm, self.topology, source, self.index)

    def reader(self) -> StreamReader:
        return StreamReader(self.ring, self.index)

    def plan(self, generation: int, first_pass: int = 0, first_block: int = 0) -> StreamPlan:
        return StreamPlan(generation, first_pass, first_block, self.producers, self.training_nodes)

    def run_round(
        self,
        plan: StreamPlan,
        actor: Producer | StreamReader,
        read: Callable[[StreamReader], None],
        start: Position,
    ) -> None:
        """One round as the runtime does it: readers join, producers start, all read, all stop."""
        if isinstance(actor, StreamReader):
            actor.begin(plan, start)
            self.world.Barrier()
            read(actor)
            actor.end()
            wait_for(self.world.Ibarrier())
        else:
            self.world.Barrier()
            self._produce(plan, actor)
        self.world.Barrier()

    def _produce(self, plan: StreamPlan, producer: Producer) -> None:
        producer.start(plan)
        everyone_left = self.world.Ibarrier()
        backoff = Backoff()
        while not everyone_left.Test():
            if producer.step():
                backoff.reset()
            else:
                backoff.wait()
        producer.stop()
        backoff.reset()
        while producer.active:
            if producer.step():
                backoff.reset()
            else:
                backoff.wait()

    def close(self) -> None:
        self.ring.close()
        self.peers.Free()
        self.node_comm.Free()
        self.comm.Free()


def read_passes(
    reader: StreamReader, source: FakeSource, passes: range, step: int, start: int = 0, delay_s: float = 0.0
) -> None:
    """Read whole passes in steps, in place, check every sample before and after the delay, release behind."""
    for pass_index in passes:
        for begin in range(start, source.num_positions, step):
            end = min(begin + step, source.num_positions)
            batch = reader.read_selection(pass_index, Selection(begin, end), in_place=True)
            source.check(batch, pass_index, begin, end)
            assert reader.count_valid(pass_index, begin, end) == len(batch)
            if delay_s:
                time.sleep(delay_s)
            source.check(batch, pass_index, begin, end)
            reader.release(pass_index, end)
        start = 0
