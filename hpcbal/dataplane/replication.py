"""Carry blocks between nodes: each block goes once to each other node, and all streams end cleanly."""

from __future__ import annotations

import enum
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from hpcbal.dataplane.cell import BLOCK, GENERATION, NO_BLOCK, Cell
from hpcbal.dataplane.ring import INACTIVE

if TYPE_CHECKING:
    from mpi4py import MPI


class Tag(enum.IntEnum):
    """Message tags of the data plane's own communicator."""

    BLOCK = 1  # producer -> gateway of another node: a part of a block, or of what ends the stream
    CLOSE = 2  # gateway -> producer: this node needs no more blocks of this generation


NUM_END_WORDS = 8
"""A bare header: a cell's first cache line."""


class BlockComm(Protocol):
    """Carries blocks between nodes: an `MPI.Comm`, or `OneNode`."""

    @property
    def rank(self) -> int: ...

    def Issend(self, buf: Any, dest: int, tag: int = ...) -> MPI.Request: ...  # noqa: N802 - as MPI has it

    def Isend(self, buf: Any, dest: int, tag: int = ...) -> MPI.Request: ...  # noqa: N802

    def Irecv(self, buf: Any, source: int = ..., tag: int = ...) -> MPI.Request: ...  # noqa: N802


class OneNode:
    """Stands in for a communicator if all ranks share one node: no block ever travels.

    Args:
        rank: world rank of this producer.
    """

    def __init__(self, rank: int) -> None:
        self.rank = rank

    def Issend(self, buf: Any, dest: int, tag: int = 0) -> MPI.Request:  # noqa: N802
        """Send a block to another node; a plan for one node never requests that."""
        raise RuntimeError(f"a block was sent to rank {dest}, but all ranks share one node")

    def Isend(self, buf: Any, dest: int, tag: int = 0) -> MPI.Request:  # noqa: N802
        return self.Issend(buf, dest, tag)

    def Irecv(self, buf: Any, source: int = 0, tag: int = 0) -> MPI.Request:  # noqa: N802
        """Receive a block from another node; a plan for one node never requests that."""
        raise RuntimeError(f"a block of rank {source} is expected, but all ranks share one node")


class BlockSender:
    """A producer's side: sends blocks to the gateways of other nodes.

    Sends are synchronous (Issend): small sends would otherwise complete before the receiver wants them, and
    fill its memory without bound. A block is two messages, metadata and payload, so each goes straight from
    cell to cell. Every stream from a producer to a gateway ends with a bare header and an empty payload, and
    every gateway notifies every producer exactly once that it needs no more blocks. So a generation leaves no
    message behind.
    """

    def __init__(self, comm: BlockComm, generation: int, gateways: tuple[int, ...]) -> None:
        """Send to `gateways` (ranks of `comm`, without this rank)."""
        self._comm = comm
        self._generation = generation
        header = np.array([generation, NO_BLOCK] + [0] * (NUM_END_WORDS - 2), np.int64)
        self._end = header, np.empty(0, np.int64)
        self._open = set(gateways)
        self._requests: list[MPI.Request] = []
        self._block_of_request: list[int] = []
        self._notices = {rank: np.zeros(2, np.int64) for rank in gateways}
        self._notice_requests = {
            rank: comm.Irecv(notice, source=rank, tag=Tag.CLOSE) for rank, notice in self._notices.items()
        }

    @property
    def wanted(self) -> bool:
        """Whether any other node still accepts blocks."""
        return bool(self._open)

    @property
    def lowest_unsent(self) -> int:
        """Lowest block whose memory is still being read, or `INACTIVE`."""
        return min(self._block_of_request, default=INACTIVE)

    @property
    def finished(self) -> bool:
        """Whether all streams have ended on both sides."""
        return not (self._open or self._requests or self._notice_requests)

    def is_sending(self, block: int) -> bool:
        """Whether the memory of `block` is still being read; never true for `INACTIVE`."""
        return block != INACTIVE and block in self._block_of_request

    def send(self, cell: Cell, block: int) -> None:
        """Start sending a finished block to every node that wants it; `cell` must not change until sent."""
        from mpi4py import MPI  # imported here: without other nodes a producer needs no MPI

        message = cell.message()  # MPI keeps the order of its parts
        for rank in self._open:
            for part in message:
                self._add(self._comm.Issend([part, MPI.BYTE], dest=rank, tag=Tag.BLOCK), block)

    def end(self) -> None:
        """Send no more blocks in this generation."""
        for rank in tuple(self._open):
            self._end_stream(rank)

    def poll(self) -> bool:
        """Progress the transfers; return whether one has ended."""
        did = False
        if self._requests:
            from mpi4py import MPI

            done = MPI.Request.Testsome(self._requests)
            for index in sorted(done or (), reverse=True):
                del self._requests[index], self._block_of_request[index]
                did = True
        for rank in [rank for rank, request in self._notice_requests.items() if request.Test()]:
            assert self._notices[rank][0] == self._generation, f"stale notice of rank {rank}"
            del self._notice_requests[rank]
            if rank in self._open:
                self._end_stream(rank)
            did = True
        return did

    def _end_stream(self, rank: int) -> None:
        self._open.discard(rank)
        # Arrives after the blocks: MPI keeps the order of messages with one source, tag and communicator.
        for part in self._end:
            self._add(self._comm.Issend(part, dest=rank, tag=Tag.BLOCK), INACTIVE)

    def _add(self, request: MPI.Request, block: int) -> None:
        self._requests.append(request)
        self._block_of_request.append(block)


@dataclass(slots=True)
class _Stream:
    """The blocks of one producer on another node."""

    rank: int
    block: int
    requests: Sequence[MPI.Request] = ()
    cell: Cell | None = None


class BlockReceiver:
    """A gateway's side: receives blocks from other nodes' producers into this node's ring.

    One block per producer is received at a time, straight into the cell, as soon as the cell is free. Blocks
    that no reader here needs are received into scratch memory, so that their senders can continue.
    """

    def __init__(
        self,
        comm: BlockComm,
        generation: int,
        first_blocks: dict[int, int],
        num_producers: int,
        cell_of_block: Callable[[int], Cell | None],
        scratch: Callable[[], Cell],
    ) -> None:
        """Receive from the given producers.

        Args:
            comm: the data plane's communicator.
            generation: generation of the round.
            first_blocks: by rank of the producers on other nodes, the first block of each.
            num_producers: distance between two blocks of one producer.
            cell_of_block: returns the cell of a block once it is free, else None.
            scratch: returns memory for one block that nobody needs; always the same memory.
        """
        self._comm = comm
        self._generation = generation
        self._step = num_producers
        self._cell_of_block = cell_of_block
        self._scratch = scratch
        self._ranks = tuple(first_blocks)
        self._streams = [_Stream(rank, block) for rank, block in first_blocks.items()]
        self._scratch_stream: _Stream | None = None
        self._notice = np.array([generation, 0], np.int64)
        self._notice_requests: list[MPI.Request] = []
        self._closed = False

    @property
    def lowest_missing(self) -> int:
        """Lowest block still to be received, or `INACTIVE`."""
        return min((stream.block for stream in self._streams), default=INACTIVE)

    @property
    def finished(self) -> bool:
        """Whether all producers have ended their streams and know that this node needs no more."""
        return self._closed and not self._streams and not self._notice_requests

    def close(self) -> None:
        """Notify all producers that this node needs no more blocks of this generation; idempotent."""
        if self._closed:
            return
        self._closed = True
        # Streams that have already ended get the notice too: each producer waits for exactly one.
        for rank in self._ranks:
            self._notice_requests.append(self._comm.Isend(self._notice, dest=rank, tag=Tag.CLOSE))

    def poll(self) -> list[int]:
        """Progress the transfers; return the blocks that are now complete in the ring."""
        arrived: list[int] = []
        if not (self._streams or self._notice_requests):
            return arrived
        from mpi4py import MPI

        for stream in tuple(self._streams):
            if not stream.requests:
                self._post(stream)
            elif MPI.Request.Testall(stream.requests):
                self._take(stream, arrived)
        if self._notice_requests and MPI.Request.Testall(self._notice_requests):
            self._notice_requests = []
        return arrived

    def _post(self, stream: _Stream) -> None:
        if not self._closed:
            stream.cell = self._cell_of_block(stream.block)
        elif self._scratch_stream is None:
            self._scratch_stream = stream
            stream.cell = self._scratch()
        if stream.cell is not None:
            from mpi4py import MPI

            stream.requests = [
                self._comm.Irecv([part, MPI.BYTE], source=stream.rank, tag=Tag.BLOCK)
                for part in stream.cell.parts
            ]

    def _take(self, stream: _Stream, arrived: list[int]) -> None:
        """Handle a finished receive."""
        assert stream.cell is not None
        header = stream.cell.header
        generation, block = header[GENERATION], header[BLOCK]
        assert generation == self._generation, f"rank {stream.rank} sent generation {generation}"
        if block == NO_BLOCK:
            self._streams.remove(stream)
        else:
            assert block == stream.block, f"rank {stream.rank} sent block {block}, not {stream.block}"
            if stream is not self._scratch_stream:
                arrived.append(block)
            stream.block += self._step
        if stream is self._scratch_stream:
            self._scratch_stream = None
        stream.requests, stream.cell = (), None
