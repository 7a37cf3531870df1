"""A trainer's own stream: the thread that waits for blocks also makes them."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable

from hpcbal.dataplane.composer import StreamSource
from hpcbal.dataplane.producer import NodeTopology, Producer
from hpcbal.dataplane.reader import StreamReader
from hpcbal.dataplane.replication import OneNode
from hpcbal.dataplane.ring import NodeRing
from hpcbal.dataplane.stream import StreamPlan, StreamSpec, round_block
from hpcbal.events.history import Position

NUM_BATCHES_IN_RING = 2
"""One in use, and the next one, which is made meanwhile."""

NUM_BLOCKS_AHEAD = 1
"""Blocks that fit into the ring in addition to those of these batches."""


class PrivateStream(StreamReader):
    """The samples of the shared stream in the same order, preprocessed for one trainer alone.

    The independent paradigm uses it to compare sharing with not sharing: every DNN pays for its own
    preprocessing, on the core that feeds it. Ring and producer are those of the shared stream, with one
    reader.
    """

    def __init__(self, spec: StreamSpec, source: StreamSource, max_batch_size: int) -> None:
        """Make a ring in this process.

        Args:
            spec: spec of the shared stream.
            source: source of the samples.
            max_batch_size: most samples that are read at once.

        Raises:
            InputError: if there is not enough memory.
        """
        most = min(max_batch_size, spec.num_positions)
        held = NUM_BATCHES_IN_RING * most
        num_blocks = math.ceil((held - 1) / spec.block_samples) + 1 + NUM_BLOCKS_AHEAD
        own_spec = dataclasses.replace(spec, ring_bytes=max(2, num_blocks) * spec.cell_bytes)
        self._own_ring = NodeRing.private(own_spec, num_readers=1, num_producers=1)
        self._producer = Producer(self._own_ring, OneNode(0), NodeTopology((0,), (0,)), source, 0)
        self._generation = 0
        super().__init__(self._own_ring, 0)

    @property
    def samples_made(self) -> int:
        """Samples preprocessed so far, for all DNNs."""
        return self._producer.samples_made

    @property
    def busy_s(self) -> float:
        """Seconds spent on preprocessing."""
        return self._producer.busy_s

    def take_bad(self) -> list[tuple[int, str, str]]:
        """(id, where, reason) of the broken samples found since the last call."""
        return self._producer.take_bad()

    def can_lend(self, num_samples: int) -> bool:
        """True for steps of at most the argument `max_batch_size`."""
        return self._has_room_for(NUM_BATCHES_IN_RING, num_samples)

    def open(self, start: Position) -> None:
        """Start a stream at `start`; `end` closes it."""
        self._generation += 1
        offset = start.offset if start.offset < self._spec.num_positions else 0
        first_pass = start.pass_index if offset == start.offset else start.pass_index + 1
        first_block = round_block(self._spec, first_pass, first_pass, offset)
        plan = StreamPlan(self._generation, first_pass, first_block, producers=(0,), training_nodes=(0,))
        self.begin(plan, Position(first_pass, offset))
        self._producer.start(plan)

    def end(self) -> None:
        """Leave the stream; blocks that were made ahead are lost."""
        super().end()
        self._producer.stop()
        while self._producer.active:
            self._producer.step()

    def close(self) -> None:
        """Free the ring; call nothing after this."""
        self._own_ring.close()

    def _pause(self, pause: Callable[[], None]) -> None:
        if not self._producer.step():
            pause()
