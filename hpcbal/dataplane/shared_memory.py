"""Memory that the ranks of a node share: how much of it is left, and a window of it."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from hpcbal.cluster.cgroup import own_control_group
from hpcbal.data.arrays import LINE_BYTES
from hpcbal.errors import InputError

if TYPE_CHECKING:
    from mpi4py import MPI

SHARED_MEMORY_DIR = "/dev/shm"
"""Where Open MPI stores windows."""

PAGE_BYTES = 4096

MEMORY_INFO = Path("/proc/meminfo")


@dataclass(frozen=True, slots=True)
class Room:
    """A limit of the memory that ranks of this node may share.

    Attributes:
        left_bytes: what may still be used.
        total_bytes: the limit itself.
        text: both, for people.
        remedy: how to get more.
    """

    left_bytes: int
    total_bytes: int
    text: str
    remedy: str


def rooms() -> list[Room]:
    """All limits that are known, at this moment."""
    found = []
    group = own_control_group()
    left, limit = group.memory_left_bytes(), group.memory_limit_bytes
    if left is not None and limit is not None:  # the system would kill a rank that uses more
        text = f"the job's control group may use {limit} bytes, {left} of them are free"
        found.append(Room(left, limit, text, "request more memory for the job (or container)"))
    if os.path.isdir(SHARED_MEMORY_DIR):
        # A window could be larger than the free space, but the first write past its end would kill the rank.
        space = os.statvfs(SHARED_MEMORY_DIR)
        left, limit = space.f_bavail * space.f_frsize, space.f_blocks * space.f_frsize
        remedy = f"give the node (or container) a larger {SHARED_MEMORY_DIR}"
        found.append(Room(left, limit, f"{SHARED_MEMORY_DIR} has {left} bytes free", remedy))
    known = _memory_info()
    if {"MemAvailable", "MemTotal"} <= known.keys():
        left, limit = known["MemAvailable"], known["MemTotal"]
        text = f"{left} of the node's {limit} bytes of memory are available"
        found.append(Room(left, limit, text, "use nodes with more memory"))
    return found


def _memory_info() -> dict[str, int]:
    """Bytes by name; empty on other systems than Linux."""
    try:
        text = MEMORY_INFO.read_text(encoding="ascii")
    except OSError:
        return {}
    words = [line.split() for line in text.splitlines()]
    return {each[0].rstrip(":"): 1024 * int(each[1]) for each in words if len(each) == 3 and each[2] == "kB"}


def shortage(num_bytes: int, what: str, key: str | None, besides: int = 0) -> str | None:
    """Return why `num_bytes` of shared memory are not available; None if they are, or if that is unknown.

    Args:
        num_bytes: size of the memory.
        what: what it is for, such as `the ring`.
        key: the key of the configuration that sets its size; None: there is none.
        besides: bytes of the ring, if it has its memory, but does not use it yet.
    """
    for room in rooms():
        if num_bytes + besides > room.left_bytes:
            promised = f", {besides} of them for the ring" if besides else ""
            return _shortage_text(num_bytes, what, key, room.text + promised, room.remedy)
    return None


def _shortage_text(num_bytes: int, what: str, key: str | None, reason: str, remedy: str) -> str:
    advice = remedy if key is None else f"lower {key}, or {remedy}"
    return f"not enough memory for {what} of this node, {num_bytes} bytes: {reason}; {advice}"


def allocate(node_comm: MPI.Intracomm, num_bytes: int, what: str, key: str | None) -> MPI.Win:
    """Allocate a window; collective over ranks of one node, and rank 0 holds the memory.

    Args:
        node_comm: ranks that share memory.
        num_bytes, what, key: see `shortage`, which the caller asks before.

    Raises:
        InputError: if MPI cannot allocate it.
    """
    from mpi4py import MPI  # imported here: private memory needs no MPI

    try:
        return MPI.Win.Allocate_shared(num_bytes if node_comm.rank == 0 else 0, 1, MPI.INFO_NULL, node_comm)
    except MPI.Exception as error:
        remedy = f"give the node (or container) a larger {SHARED_MEMORY_DIR}"
        raise InputError(_shortage_text(num_bytes, what, key, error.Get_error_string(), remedy)) from error


class SharedMemory:
    """Bytes that start on a cache line; in ranks that share them, or in one process.

    Attributes:
        memory: the bytes, uint8.
        sync: a full memory barrier.
    """

    def __init__(
        self,
        memory: NDArray[np.uint8],
        sync: Callable[[], None],
        add: Callable[[int, int], int],
        free: Callable[[], None] | None = None,
    ) -> None:
        """Do not call; use `create` or `private`."""
        self.memory = memory
        self.sync = sync
        self._add = add
        self._free = free

    @classmethod
    def create(cls, node_comm: MPI.Intracomm, num_bytes: int, what: str, key: str) -> SharedMemory:
        """Allocate a window; collective over ranks of one node, and rank 0 holds the memory.

        Args:
            node_comm: ranks that share memory.
            num_bytes, what, key: see `shortage`, which the caller asks before.

        Raises:
            InputError: if MPI cannot allocate it.
        """
        from mpi4py import MPI  # imported here: private memory needs no MPI

        is_owner = node_comm.rank == 0
        window = allocate(node_comm, num_bytes + LINE_BYTES, what, key)
        # Windows are mapped at page boundaries, so the offset to a cache line is the same in all ranks.
        mapped: Any = window.Shared_query(0)[0]
        memory = np.frombuffer(mapped, np.uint8)
        shift: int = node_comm.bcast(-memory.ctypes.data % LINE_BYTES if is_owner else None)
        window.Lock_all(MPI.MODE_NOCHECK)
        before = np.zeros(1, np.int64)

        def add(offset: int, number: int) -> int:
            window.Fetch_and_op(np.array([number], np.int64), before, 0, shift + offset, MPI.SUM)
            window.Flush(0)
            return int(before[0])

        def free() -> None:
            window.Unlock_all()
            window.Free()

        return cls(memory[shift:], window.Sync, add, free)

    @classmethod
    def private(cls, num_bytes: int) -> SharedMemory:
        """Allocate memory of this process, for its own threads, all zero; not collective.

        Raises:
            MemoryError: if there is not enough memory.
        """
        memory = np.zeros(num_bytes + LINE_BYTES, np.uint8)
        memory = memory[-memory.ctypes.data % LINE_BYTES :]
        lock = threading.Lock()

        def add(offset: int, number: int) -> int:
            word = memory[offset : offset + 8].view(np.int64)
            with lock:
                before = int(word[0])
                word[0] = before + number
            return before

        # Python's lock orders the writes of the threads of one process.
        return cls(memory, lambda: None, add)

    def fetch_add(self, offset: int, number: int) -> int:
        """Add to the int64 at a byte offset, as one step for all ranks; return what it was before."""
        return self._add(offset, number)

    def touch(self, first: int, step: int) -> None:
        """Take memory for every `step`-th page, from page `first` on: now, while there is memory.

        A write to shared memory that is not there kills the process. Ranks that take turns spread the pages
        over the memory controllers of the node. What was there is lost.
        """
        self.memory[first * PAGE_BYTES :: step * PAGE_BYTES] = 0
        self.memory[-1] = 0

    def free(self) -> None:
        """Free the memory, once no view of it is left; collective unless it is private."""
        del self.memory, self.sync, self._add  # views of freed memory would crash the process
        if self._free is not None:
            self._free()
