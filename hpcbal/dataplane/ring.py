"""The ring of one node: block cells and cursors in shared memory."""

from __future__ import annotations

from types import TracebackType
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from hpcbal.data.arrays import LINE_BYTES
from hpcbal.dataplane.cell import Cell
from hpcbal.dataplane.shared_memory import SharedMemory, shortage
from hpcbal.dataplane.stream import StreamSpec
from hpcbal.errors import InputError

if TYPE_CHECKING:
    from mpi4py import MPI

INACTIVE = 2**62
"""Cursor of a reader that needs no block."""

BLOCK_BITS = 40
BLOCK_MASK = 2**BLOCK_BITS - 1


class NodeRing:
    """Cells that every rank of the node maps, with one single-writer word per rank and per cell.

    Three kinds of words, each on its own cache line, describe the progress. No atomic operation is needed,
    because each word has one writer at a time:

    - a *cursor* per reader: the lowest block that it still needs, or `INACTIVE`;
    - a *mark* per writer (preprocessor rank): all its blocks below it are written, received and sent;
    - a *stamp* per cell: the complete block that it holds, with its generation.

    The *floor* is the minimum of all cursors and marks. Nobody needs a block below it, and nobody is writing
    or sending one, so block b may be written to its cell as soon as `b - num_cells` is below the floor.

    Samples of equal shape follow each other through all cells without a gap (`samples`), so that a reader may
    use a range of them where it lies.

    Every word is written after, and read before, a full memory barrier (`MPI.Win.Sync`): processors such as
    POWER and Arm reorder stores, and could show a stamp before its samples.

    Attributes:
        spec: of the stream.
        num_cells: blocks that it holds.
        num_bytes: size of its memory.
        samples: the samples of all cells, if all have the same shape; read-only.
    """

    def __init__(self, shared: SharedMemory, spec: StreamSpec, num_readers: int, num_producers: int) -> None:
        """Do not call; use `create` or `private`."""
        self._shared = shared
        self.num_bytes = _num_bytes(spec, num_readers, num_producers)
        memory = shared.memory
        self._is_open = True
        self.spec = spec
        self.num_cells = spec.num_cells
        cells_at = LINE_BYTES * (num_readers + num_producers + self.num_cells)
        lines = memory[:cells_at].view(np.int64).reshape(-1, LINE_BYTES // 8)
        # A memoryview returns a word as a Python int in half of NumPy's time, and these words are polled.
        words = [line.data for line in lines]
        self._cursors = words[:num_readers]
        self._marks = words[num_readers : num_readers + num_producers]
        self._stamps = words[num_readers + num_producers :]
        layout = spec.layout
        payloads_at = cells_at + self.num_cells * layout.meta_bytes
        metas = memory[cells_at:payloads_at].reshape(self.num_cells, -1)
        end = payloads_at + self.num_cells * layout.payload_bytes
        payloads = memory[payloads_at:end].reshape(self.num_cells, -1)
        self.cells = tuple(Cell(layout, meta, payload) for meta, payload in zip(metas, payloads, strict=True))
        shape = spec.static_shape()
        self.samples: NDArray[Any] | None = None
        if shape is not None:
            self.samples = memory[payloads_at:end].view(spec.sample.dtype).reshape(-1, *shape)
            self.samples.flags.writeable = False  # for readers, and so for users' models
        self.sync = shared.sync

    @classmethod
    def create(
        cls,
        node_comm: MPI.Intracomm,
        spec: StreamSpec,
        num_readers: int,
        num_producers: int,
    ) -> NodeRing:
        """Allocate the ring; collective over the node.

        Args:
            node_comm: ranks that share memory; rank 0 holds the memory.
            spec: the same on all ranks.
            num_readers: trainer ranks of the node; their indices are 0..num_readers-1.
            num_producers: preprocessor ranks of the node, with indices 0..num_producers-1.

        Raises:
            InputError: on all ranks, if the node has too little shared memory, or the job too little memory.
        """
        num_bytes = _num_bytes(spec, num_readers, num_producers)
        named = ("the ring", "dataplane.ring_bytes")
        is_owner = node_comm.rank == 0
        problem = node_comm.bcast(shortage(num_bytes, *named) if is_owner else None)
        if problem is not None:
            raise InputError(problem)
        shared = SharedMemory.create(node_comm, num_bytes, *named)
        shared.touch(node_comm.rank, node_comm.size)
        node_comm.Barrier()
        ring = cls(shared, spec, num_readers, num_producers)
        if is_owner:
            ring._clear()
        ring.sync()
        node_comm.Barrier()
        ring.sync()
        return ring

    @classmethod
    def private(cls, spec: StreamSpec, num_readers: int, num_producers: int) -> NodeRing:
        """Make a ring in this process's memory, for its own threads; not collective.

        Raises:
            InputError: if there is not enough memory.
        """
        num_bytes = _num_bytes(spec, num_readers, num_producers)
        try:
            shared = SharedMemory.private(num_bytes)
        except MemoryError as error:
            raise InputError(
                f"no memory for a ring of {num_bytes} bytes; lower batch_size or dataplane.block_samples"
            ) from error
        ring = cls(shared, spec, num_readers, num_producers)
        ring._clear()
        return ring

    def _clear(self) -> None:
        for cursor in self._cursors:
            cursor[0] = INACTIVE
        for word in (*self._marks, *self._stamps):
            word[0] = 0

    def __enter__(self) -> NodeRing:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None:  # freeing is collective: the peers of a failed rank may never come
            self.close()

    def close(self) -> None:
        """Free the memory; idempotent, and collective over the node unless the ring is private."""
        if not self._is_open:
            return
        self._is_open = False
        # Views of freed memory would crash the process: drop the views first.
        self.cells, self.samples = (), None
        self._cursors, self._marks, self._stamps = [], [], []
        del self.sync
        self._shared.free()

    def set_cursor(self, reader: int, block: int) -> None:
        """Publish that `reader` needs nothing below `block`; its earlier copies come before this write."""
        self.sync()
        self._cursors[reader][0] = block

    def set_mark(self, producer: int, generation: int, block: int) -> None:
        """Publish that this writer's blocks below `block` are all written and sent."""
        self.sync()
        self._marks[producer][0] = generation << BLOCK_BITS | block

    def floor(self, generation: int, num_writers: int, first_block: int) -> int:
        """Lowest block that a reader needs or a writer works on; the cells of lower blocks are free.

        Args:
            generation: generation of the running round.
            num_writers: preprocessor ranks of this node that publish a mark in this generation.
            first_block: first block of the round.

        Returns:
            A block, or `INACTIVE` if no reader is active. Until all writers have started, a floor that frees
            no cell: a late writer may still be busy with cells of the last round.
        """
        cursor = min([cursor[0] for cursor in self._cursors], default=INACTIVE)
        if cursor == INACTIVE:
            return INACTIVE
        marks = [mark[0] & BLOCK_MASK for mark in self._marks if mark[0] >> BLOCK_BITS == generation]
        self.sync()
        return min(cursor, *marks) if len(marks) >= num_writers else first_block - self.num_cells

    def publish(self, generation: int, block: int) -> None:
        """Publish to readers that `block` is complete in its cell."""
        self.sync()
        self._stamps[block % self.num_cells][0] = generation << BLOCK_BITS | block + 1

    def has_block(self, generation: int, block: int) -> bool:
        """Whether `block` is complete in its cell; ask only while a cursor protects it."""
        stamp = self._stamps[block % self.num_cells][0]
        wanted = generation << BLOCK_BITS | block + 1
        if stamp == wanted:
            self.sync()
            return True
        assert stamp < wanted, f"block {block} of generation {generation} was overwritten (stamp {stamp:#x})"
        return False


def _num_bytes(spec: StreamSpec, num_readers: int, num_producers: int) -> int:
    """Bytes of a ring."""
    num_words = num_readers + num_producers + spec.num_cells
    return LINE_BYTES * num_words + spec.num_cells * spec.layout.num_bytes
