"""Control messages over an MPI communicator."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any

from mpi4py import MPI

from hpcbal.comm.channel import Channel
from hpcbal.comm.message import Message

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
