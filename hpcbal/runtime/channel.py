"""Control messages between ranks, without ever burning a core while waiting."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

from mpi4py import MPI

from hpcbal.dataplane.waiting import Backoff
from hpcbal.runtime.protocol import Message, Tag


class Channel:
    """Send and receive control messages over a communicator of its own.

    Sends are buffered by this object until MPI has taken them, so that no sender ever waits for a receiver
    that is busy computing.
    """

    def __init__(self, comm: MPI.Intracomm) -> None:
        self._comm = comm
        self._pending: list[tuple[MPI.Request, Any]] = []

    @property
    def rank(self) -> int:
        return self._comm.rank

    @property
    def size(self) -> int:
        return self._comm.size

    def send(self, destination: int, message: Message) -> None:
        """Hand `message` to MPI; returns at once."""
        self._pending = [entry for entry in self._pending if not entry[0].Test()]
        request = self._comm.isend(message, dest=destination, tag=Tag.MESSAGE)
        self._pending.append((request, message))

    def send_to_all(self, destinations: Sequence[int], message: Message) -> None:
        """As `send` to each of them; the message is pickled once, since an order may hold a large plan."""
        data = MPI.pickle.dumps(message)
        self._pending = [entry for entry in self._pending if not entry[0].Test()]
        for destination in destinations:
            request = self._comm.Isend([data, MPI.BYTE], dest=destination, tag=Tag.MESSAGE)
            self._pending.append((request, data))

    def receive(self) -> tuple[int, Message] | None:
        """The next message and its sender, or None when there is none now."""
        status = MPI.Status()
        if not self._comm.iprobe(MPI.ANY_SOURCE, Tag.MESSAGE, status):
            return None
        source = status.Get_source()
        return source, self._comm.recv(source=source, tag=Tag.MESSAGE)

    def wait(self, meanwhile: Callable[[], None] | None = None) -> tuple[int, Message]:
        """The next message; `meanwhile` runs between polls and may raise to get out."""
        backoff = Backoff()
        while True:
            found = self.receive()
            if found is not None:
                return found
            if meanwhile is not None:
                meanwhile()
            backoff.wait()

    def flush(self, timeout_s: float = 10.0) -> bool:
        """Wait until MPI has taken all sends; False when that took longer than `timeout_s`."""
        backoff = Backoff()
        deadline = time.monotonic() + timeout_s
        while self._pending:
            self._pending = [entry for entry in self._pending if not entry[0].Test()]
            if not self._pending:
                break
            if time.monotonic() > deadline:
                return False
            backoff.wait()
        return True


def patient_gather(comm: MPI.Intracomm, value: Any) -> list[Any] | None:
    """Gather one picklable value per rank to rank 0 while sleeping between polls; collective.

    MPI's own collectives spin while they wait; start-up work of one rank (loading TensorFlow) would then take
    the cores from the others.

    Returns:
        The values in order of rank on rank 0, None elsewhere.
    """
    if comm.rank != 0:
        _finish(comm.isend(value, dest=0, tag=0))
        return None
    values: list[Any] = [None] * comm.size
    values[0] = value
    for source in range(1, comm.size):
        values[source] = _receive_from(comm, source)
    return values


def patient_broadcast(comm: MPI.Intracomm, value: Any) -> Any:
    """Broadcast a picklable value from rank 0 while sleeping between polls; collective."""
    if comm.rank == 0:
        for request in [comm.isend(value, dest=peer, tag=0) for peer in range(1, comm.size)]:
            _finish(request)
        return value
    return _receive_from(comm, 0)


def patient_allgather(comm: MPI.Intracomm, value: Any) -> list[Any]:
    """Gather one picklable value per rank to all ranks while sleeping between polls; collective."""
    values: list[Any] = patient_broadcast(comm, patient_gather(comm, value))
    return values


def patient_barrier(comm: MPI.Intracomm) -> None:
    """Wait for all ranks of `comm` without burning a core; collective."""
    _finish(comm.Ibarrier())


def _finish(request: MPI.Request) -> None:
    backoff = Backoff()
    while not request.Test():
        backoff.wait()


def _receive_from(comm: MPI.Intracomm, source: int) -> Any:
    backoff = Backoff()
    while not comm.iprobe(source, 0):
        backoff.wait()
    return comm.recv(source=source, tag=0)


def first_error(outcomes: Sequence[BaseException | None]) -> BaseException | None:
    """The error of the lowest rank that has one."""
    return next((error for error in outcomes if error is not None), None)
