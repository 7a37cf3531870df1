"""A preprocessor rank's end of the stream: make blocks, pass them on, receive those of other nodes."""

from __future__ import annotations

import time
from dataclasses import dataclass

from hpcbal.dataplane.cell import Cell
from hpcbal.dataplane.composer import BlockComposer, StreamSource
from hpcbal.dataplane.replication import BlockComm, BlockReceiver, BlockSender
from hpcbal.dataplane.ring import BLOCK_MASK, INACTIVE, NodeRing
from hpcbal.dataplane.stream import StreamPlan

QUANTUM_S = 1e-3
"""`step` returns to its caller, which must handle messages, about this often."""

POLL_INTERVAL_S = 1e-4
"""Transfers are progressed about this often while samples are made."""

NUM_PRIVATE_CELLS = 2
"""Blocks in flight from a node without readers: one is sent while the next is made."""


@dataclass(frozen=True, slots=True)
class NodeTopology:
    """Which rank is on which node.

    Attributes:
        node_of_rank: node of each world rank.
        gateway_of_node: per node, the world rank that receives blocks from other nodes: its first
            preprocessor.
    """

    node_of_rank: tuple[int, ...]
    gateway_of_node: tuple[int, ...]


class Producer:
    """Makes the blocks that a plan assigns to this rank, and is its node's gateway if the topology says so.

    Everything happens in `step`, in one thread and without blocking: transfers are progressed between two
    samples, so slow decoding does not delay other nodes.

    Every preprocessor rank that is a producer of the plan, or the gateway of a training node, takes part:
    call `start`, then `step` until the round ends, `stop`, then `step` until no longer `active`. The next
    `start` comes after all of them have stopped.

    Attributes:
        busy_s: seconds spent making samples so far, over all rounds.
    """

    def __init__(
        self,
        ring: NodeRing,
        comm: BlockComm,
        topology: NodeTopology,
        source: StreamSource,
        producer_index: int,
    ) -> None:
        """Prepare the producer; sends nothing.

        Args:
            ring: ring of this rank's node.
            comm: all ranks in world order, used by producers only; `OneNode` if all share a node.
            topology: placement of all ranks.
            source: the same samples on all ranks.
            producer_index: 0..num_producers-1 of the ring, different for each producer of the node.
        """
        self._ring = ring
        self._comm = comm
        self._topology = topology
        self._node = topology.node_of_rank[comm.rank]
        self._index = producer_index
        self._composer = BlockComposer(ring.spec, source)
        self._private: list[Cell] = []
        self._block_of_private = [INACTIVE] * NUM_PRIVATE_CELLS
        self._plan: StreamPlan | None = None
        self.busy_s = 0.0

    @property
    def active(self) -> bool:
        """Whether a round is running or stopping."""
        return self._plan is not None

    @property
    def samples_made(self) -> int:
        """Samples written so far, over all rounds."""
        return self._composer.samples_made

    @property
    def reads(self) -> int:
        """Samples requested from the source so far, including broken ones."""
        return self._composer.reads

    def take_bad(self) -> list[tuple[int, str, str]]:
        """(id, where, reason) of the broken samples found since the last call."""
        bad, self._composer.bad = self._composer.bad, []
        return bad

    def start(self, plan: StreamPlan) -> None:
        """Start a round; all its readers must have published their cursors before."""
        assert self._plan is None, f"generation {plan.generation} was started while another was running"
        rank, nodes = self._comm.rank, self._topology.node_of_rank
        gateways = self._topology.gateway_of_node
        self._plan = plan
        self._stopping = False
        self._known_floor = -self._ring.num_cells
        self._last_poll_s = 0.0
        self._cell: Cell | None = None
        self._block_of_private = [INACTIVE] * NUM_PRIVATE_CELLS
        # Readers never join a running round: a node without readers now needs no block until its end.
        self._local = self._node in plan.training_nodes
        local_writers = {p for p in plan.producers if nodes[p] == self._node}
        if self._local:
            local_writers.add(gateways[self._node])
        self._num_writers = len(local_writers)
        self._is_writer = rank in local_writers
        others: tuple[int, ...] = ()
        self._next_block = INACTIVE
        if rank in plan.producers:
            self._next_block = plan.first_block_of(plan.producers.index(rank))
            others = tuple(gateways[node] for node in plan.training_nodes if node != self._node)
        self._sender = BlockSender(self._comm, plan.generation, others)
        remote: dict[int, int] = {}
        if self._local and rank == gateways[self._node]:
            far = [i for i, p in enumerate(plan.producers) if nodes[p] != self._node]
            remote = {plan.producers[i]: plan.first_block_of(i) for i in far}
        self._receiver = BlockReceiver(
            self._comm, plan.generation, remote, len(plan.producers), self._free_cell, self._scratch
        )
        self._has_peers = bool(others or remote)
        self._publish_mark()

    def stop(self) -> None:
        """Request the end of the round; further `step`s complete it, until `active` is false."""
        if self._plan is None or self._stopping:
            return
        self._stopping = True
        self._composer.abandon()
        self._cell = None
        self._next_block = INACTIVE
        self._sender.end()
        self._receiver.close()

    def step(self) -> bool:
        """Do about a millisecond of work; return whether there was any."""
        plan = self._plan
        if plan is None:
            return False
        did = self._move_transfers(plan)
        if self._stopping:
            if self._sender.finished and self._receiver.finished:
                self._plan = None
                did = True
            return did
        # Make several blocks if samples are cheap: checking for messages costs the caller its turn on the
        # core.
        end_s = time.perf_counter() + QUANTUM_S
        while self._cell is not None or self._open_block(plan):
            if self._composer.is_waiting:  # the caller answers other nodes meanwhile
                return did
            did = True
            if self._compose(plan, end_s):
                return True
        return did

    def _compose(self, plan: StreamPlan, end_s: float) -> bool:
        """Make samples of the open block to its end, or until `end_s`; return whether time ran out.

        Also stops at a sample that is on its way from another node.
        """
        began = now = time.perf_counter()
        away_s = 0.0
        finished = False
        while not finished and now < end_s and not self._composer.is_waiting:
            finished = self._composer.step()
            now = time.perf_counter()
            if now - self._last_poll_s > POLL_INTERVAL_S:
                self._move_transfers(plan)
                after = time.perf_counter()
                away_s += after - now
                now = after
        self.busy_s += now - began - away_s
        if finished:
            self._hand_out(plan)
        return now >= end_s

    def _open_block(self, plan: StreamPlan) -> bool:
        """Find memory for the next block; false if there is none yet, or nothing to make."""
        block = self._next_block
        if block == INACTIVE:
            return False
        if self._local:
            self._cell = self._free_cell(block)
        if not self._local and self._sender.wanted:  # _free_cell may have just seen the last reader leave
            self._cell = self._free_private_cell(block)
        if self._cell is None:
            return False
        self._composer.begin(self._cell, plan.generation, block, plan.first_pass)
        return True

    def _hand_out(self, plan: StreamPlan) -> None:
        """Publish the finished block to this node's readers, and send it to the other nodes."""
        cell, block = self._cell, self._next_block
        assert cell is not None
        if cell is self._ring.cells[block % self._ring.num_cells]:
            self._ring.publish(plan.generation, block)
        if self._sender.wanted:
            self._sender.send(cell, block)
        self._cell = None
        self._next_block += len(plan.producers)
        self._publish_mark()

    def _move_transfers(self, plan: StreamPlan) -> bool:
        self._last_poll_s = time.perf_counter()
        if not self._has_peers:
            return False
        did = self._sender.poll()
        for block in self._receiver.poll():
            self._ring.publish(plan.generation, block)
            did = True
        if did:
            self._publish_mark()
        return did

    def _publish_mark(self) -> None:
        """Publish this writer's progress to the node's other writers."""
        assert self._plan is not None
        if self._is_writer:
            block = min(self._next_block, self._sender.lowest_unsent, self._receiver.lowest_missing)
            self._ring.set_mark(self._index, self._plan.generation, min(block, BLOCK_MASK))

    def _free_cell(self, block: int) -> Cell | None:
        """The ring's cell for `block` if nobody needs its present content."""
        assert self._plan is not None
        ring = self._ring
        if not self._local:
            return None
        if block - ring.num_cells >= self._known_floor:
            plan = self._plan
            self._known_floor = ring.floor(plan.generation, self._num_writers, plan.first_block)
            if self._known_floor == INACTIVE:
                self._local = False
                self._receiver.close()
                return None
            if block - ring.num_cells >= self._known_floor:
                return None
        return ring.cells[block % ring.num_cells]

    def _free_private_cell(self, block: int) -> Cell | None:
        """Private memory for a block that goes only to other nodes."""
        for index, held in enumerate(self._block_of_private):
            if not self._sender.is_sending(held):
                self._block_of_private[index] = block
                return self._private_cell(index)
        return None

    def _private_cell(self, index: int) -> Cell:
        while len(self._private) <= index:
            self._private.append(Cell.private(self._ring.spec.layout))
        return self._private[index]

    def _scratch(self) -> Cell:
        return self._private_cell(NUM_PRIVATE_CELLS)
