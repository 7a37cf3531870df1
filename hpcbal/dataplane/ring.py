"""The ring of one node: block cells and cursors in shared memory."""

from __future__ import annotations

import os
from collections.abc import Callable
from types import TracebackType
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from hpcbal.dataplane.cell import Cell
from hpcbal.dataplane.stream import StreamSpec
from hpcbal.errors import InputError
from hpcbal.telemetry.resources.cgroup import own_control_group
from hpcbal.values.arrays import LINE_BYTES

if TYPE_CHECKING:
    from mpi4py import MPI

INACTIVE = 2**62
"""Cursor of a reader that needs no block."""

BLOCK_BITS = 40
BLOCK_MASK = 2**BLOCK_BITS - 1

SHARED_MEMORY_DIR = "/dev/shm"
"""Where Open MPI stores windows."""


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
    """

    def __init__(
        self,
        memory: NDArray[np.uint8],
        sync: Callable[[], None],
        spec: StreamSpec,
        num_readers: int,
        num_producers: int,
        free: Callable[[], None] | None = None,
    ):
        """Do not call; use `create` or `private`."""
        self._free = free
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
        self.sync = sync

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
        is_owner = node_comm.rank == 0
        problem = node_comm.bcast(_shortage(num_bytes) if is_owner else None)
        if problem is not None:
            raise InputError(problem)
        from mpi4py import MPI  # imported here: a private ring needs no MPI

        try:
            window = MPI.Win.Allocate_shared(num_bytes if is_owner else 0, 1, MPI.INFO_NULL, node_comm)
        except MPI.Exception as error:
            raise InputError(_shortage_text(num_bytes, error.Get_error_string())) from error
        # Windows are mapped at page boundaries, so the offset to a cache line is the same in all ranks.
        memory = _memory_of(window)
        shift = node_comm.bcast(-memory.ctypes.data % LINE_BYTES if is_owner else None)
        window.Lock_all(MPI.MODE_NOCHECK)

        def free() -> None:
            window.Unlock_all()
            window.Free()

        ring = cls(memory[shift:], window.Sync, spec, num_readers, num_producers, free)
        if is_owner:
            ring._clear()
        window.Sync()
        node_comm.Barrier()
        window.Sync()
        return ring

    @classmethod
    def private(cls, spec: StreamSpec, num_readers: int, num_producers: int) -> NodeRing:
        """Make a ring in this process's memory, for its own threads; not collective.

        Raises:
            InputError: if there is not enough memory.
        """
        num_bytes = _num_bytes(spec, num_readers, num_producers)
        try:
            memory = np.empty(num_bytes, np.uint8)
        except MemoryError as error:
            raise InputError(
                f"no memory for a ring of {num_bytes} bytes; lower batch_size or dataplane.block_samples"
            ) from error
        shift = -memory.ctypes.data % LINE_BYTES
        # Python's lock orders the writes of the threads of one process.
        ring = cls(memory[shift:], lambda: None, spec, num_readers, num_producers)
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
        if self._free is not None:
            self._free()

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
    """Bytes of a ring, including padding to start on a cache line."""
    num_words = num_readers + num_producers + spec.num_cells
    return LINE_BYTES * (1 + num_words) + spec.num_cells * spec.layout.num_bytes


def _memory_of(window: MPI.Win) -> NDArray[np.uint8]:
    memory: Any = window.Shared_query(0)[0]
    return np.frombuffer(memory, np.uint8)


def _shortage(num_bytes: int) -> str | None:
    """Why `num_bytes` of shared memory are not available; None if they are, or if that is unknown."""
    group = own_control_group()
    left_bytes = group.memory_left_bytes()
    if left_bytes is not None and num_bytes > left_bytes:  # the system would kill a rank that fills the ring
        return (
            f"not enough memory for the ring of this node, {num_bytes} bytes: the job's control group may "
            f"use {group.memory_limit_bytes} bytes, {left_bytes} of them are free; lower "
            "dataplane.ring_bytes, or request more memory for the job (or container)"
        )
    if not os.path.isdir(SHARED_MEMORY_DIR):
        return None
    space = os.statvfs(SHARED_MEMORY_DIR)
    free_bytes = space.f_bavail * space.f_frsize
    if num_bytes <= free_bytes:
        return None
    # The window could be larger than the free space, but the first write past its end would kill the rank.
    return _shortage_text(num_bytes, f"{SHARED_MEMORY_DIR} has {free_bytes} bytes free")


def _shortage_text(num_bytes: int, reason: str) -> str:
    return (
        f"no shared memory for the ring of this node, {num_bytes} bytes: {reason}; lower "
        f"dataplane.ring_bytes, or give the node (or container) a larger {SHARED_MEMORY_DIR}"
    )
