"""Channels, collectives and pieces of data over MPI, without burning a core; the library that is loaded."""

from __future__ import annotations

import ctypes
import re
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from mpi4py import MPI
from numpy.typing import NDArray

from hpcbal.comm.backoff import Backoff
from hpcbal.comm.channel import Channel, Message
from hpcbal.comm.group_comm import GroupComm, Piece, PieceExchange, Reduction


def wait_for(request: MPI.Request, poll: Callable[[], None] | None = None) -> None:
    """Complete `request`; test it with a backoff.

    Args:
        poll: called repeatedly during the wait, where it may be long.

    Raises:
        MPI.Exception: if the operation failed.
    """
    backoff = Backoff()
    while not request.Test():
        if poll is not None:
            poll()
        backoff.wait()


TAG = 1
"""The only tag of the control communicator: MPI keeps the order of messages between two ranks."""


class MpiChannel(Channel):
    """Control messages over a dedicated communicator.

    MPI may need the receiver's help to finish a send, so this class keeps each message until MPI has sent it.

    Args:
        comm: communicator that nothing else uses.
    """

    def __init__(self, comm: MPI.Intracomm) -> None:
        self._comm = comm
        self._lock = threading.Lock()
        self._pending: list[tuple[MPI.Request, Any]] = []

    @property
    def rank(self) -> int:
        return self._comm.rank

    @property
    def size(self) -> int:
        return self._comm.size

    @property
    def sends_from_threads(self) -> bool:
        return bool(MPI.Query_thread() == MPI.THREAD_MULTIPLE)

    def send(self, destination: int, message: Message) -> None:
        self.send_to_all([destination], message)

    def send_to_all(self, destinations: Sequence[int], message: Message) -> None:
        data = MPI.pickle.dumps(message)
        with self._lock:
            self._drop_sent()
            for destination in destinations:
                request = self._comm.Isend([data, MPI.BYTE], dest=destination, tag=TAG)
                self._pending.append((request, data))

    def receive(self) -> tuple[int, Message] | None:
        status = MPI.Status()
        if not self._comm.iprobe(MPI.ANY_SOURCE, TAG, status):
            return None
        source = status.Get_source()
        return source, self._comm.recv(source=source, tag=TAG)

    def is_sent(self) -> bool:
        with self._lock:
            self._drop_sent()
            return not self._pending

    def _drop_sent(self) -> None:
        self._pending = [entry for entry in self._pending if not entry[0].Test()]


PIECES_TAG = 1
"""Tag of the messages; the communicator carries nothing else."""


class MpiPieces(PieceExchange):
    """Synchronous sends, so at most one piece per sender waits at a receiver.

    Args:
        comm: communicator of the ranks, used for nothing else; freed by `close`.
    """

    def __init__(self, comm: MPI.Intracomm) -> None:
        self._comm = comm
        # With each request, what MPI reads or fills until it is complete.
        self._sent: dict[int, tuple[MPI.Request, Piece]] = {}
        self._coming: dict[int, tuple[MPI.Request, Piece]] = {}

    @property
    def rank(self) -> int:
        return self._comm.rank

    @property
    def size(self) -> int:
        return self._comm.size

    def send(self, destination: int, piece: Piece) -> None:
        self._sent[destination] = self._comm.Issend(piece, dest=destination, tag=PIECES_TAG), piece

    def is_free(self, destination: int) -> bool:
        if destination in self._sent and self._sent[destination][0].Test():
            del self._sent[destination]
        return destination not in self._sent

    def receive(self, source: int) -> Piece | None:
        if source not in self._coming:
            status = MPI.Status()
            if not self._comm.Iprobe(source=source, tag=PIECES_TAG, status=status):
                return None
            piece = np.empty(status.Get_count(MPI.BYTE), np.uint8)
            self._coming[source] = self._comm.Irecv(piece, source=source, tag=PIECES_TAG), piece
        request, piece = self._coming[source]
        if not request.Test():
            return None
        del self._coming[source]
        return piece

    def exchange_numbers(self, numbers: NDArray[np.int64], poll: Callable[[], None]) -> NDArray[np.int64]:
        given = np.empty(self.size, np.int64)
        wait_for(self._comm.Ialltoall(np.ascontiguousarray(numbers, np.int64), given), poll)
        return given

    def close(self) -> None:
        self._comm.Free()


_OPERATIONS = {"sum": MPI.SUM, "min": MPI.MIN, "max": MPI.MAX}


class MpiGroupComm(GroupComm):
    """Non-blocking MPI collectives, completed with a backoff.

    Args:
        comm: communicator of the group's ranks, the master first; whoever made it frees it.
    """

    def __init__(self, comm: MPI.Intracomm) -> None:
        self.mpi = comm

    @property
    def rank(self) -> int:
        return self.mpi.rank

    @property
    def size(self) -> int:
        return self.mpi.size

    def all_gather(self, mine: NDArray[Any], poll: Callable[[], None] | None = None) -> NDArray[Any]:
        everyone = np.empty((self.size, *mine.shape), mine.dtype)
        wait_for(self.mpi.Iallgather(np.ascontiguousarray(mine), everyone), poll)
        return everyone

    def all_reduce(self, mine: NDArray[Any], reduction: Reduction) -> NDArray[Any]:
        result = np.array(mine, order="C")
        wait_for(self.mpi.Iallreduce(MPI.IN_PLACE, result, op=_OPERATIONS[reduction]))
        return result

    def broadcast(self, array: NDArray[Any]) -> None:
        wait_for(self.mpi.Ibcast(array, root=0))

    def open_pieces(self) -> MpiPieces:
        return MpiPieces(self.mpi.Dup())


_GPU_KINDS = {"cuda", "rocm", "level_zero"}
"""Kinds of memory of GPUs, as MPI names them in `mpi_memory_alloc_kinds`."""

_QUERIES = ("MPIX_Query_cuda_support", "MPIX_Query_rocm_support", "MPIX_Query_ze_support")
"""Extensions of Open MPI and MPICH, which return 1 or 0."""


def loaded_libraries(maps: Path = Path("/proc/self/maps")) -> list[str]:
    """Paths of the MPI libraries in this process, sorted; more than one if parts of it use different MPIs.

    Args:
        maps: the process's table of mapped files. Without it, or where the library has another name than
            `libmpi.so`, the list is empty.
    """
    try:
        text = maps.read_text(errors="replace")
    except OSError:
        return []
    return sorted(set(re.findall(r"/\S*/libmpi\.so\S*", text)))


def takes_gpu_memory() -> bool:
    """Whether MPI says that its operations may be given memory of GPUs; False if it does not say.

    Source: MPI 4.1 (side document on memory allocation kinds) for the info key; the manuals of Open MPI and
    MPICH for the functions.
    """
    info = MPI.COMM_WORLD.Get_info()
    kinds = (info.Get("mpi_memory_alloc_kinds") or "").split(",")
    info.Free()
    if any(kind.strip().partition(":")[0] in _GPU_KINDS for kind in kinds):
        return True
    return any(_asks(path, name) for path in loaded_libraries() for name in _QUERIES)


def _asks(path: str, name: str) -> bool:
    """Call the function of this name, if the library has it."""
    try:
        query = getattr(ctypes.CDLL(path), name)
    except (AttributeError, OSError):
        return False
    query.restype = ctypes.c_int
    return bool(query())
