"""Where ranks that form a process group of torch.distributed leave their addresses: sent by MPI."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from datetime import timedelta

import numpy as np
import torch.distributed as dist
from mpi4py import MPI

from hpcbal.comm.backoff import Backoff
from hpcbal.comm.mpi import wait_for

TAG = 3
"""Of its messages on a group's communicator; the group's collective uses lower ones."""


class MpiStore(dist.Store):
    """A store of torch.distributed without a server, a port or a file: each rank sends its values to all.

    It needs no locks of a file system, which some parallel ones lack, and leaves nothing behind if a rank is
    killed. Only keys that one rank sets are possible (no counters), which is all that process groups need.

    The libraries' own threads may call it, one at a time. MPI is called until `settle` only; later values
    stay on their rank.

    Args:
        comm: the group's communicator, owned by the caller.
    """

    def __init__(self, comm: MPI.Intracomm) -> None:
        super().__init__()  # without it, PyTorch does not find the methods below
        self._comm = comm
        self._values: dict[str, bytes] = {}
        self._sent: list[MPI.Request] = []
        self._num_sent = 0
        self._num_received = np.zeros(comm.size, np.int64)
        self._is_sending = self._is_receiving = True
        self._lock = threading.Lock()

    def set(self, key: str, value: bytes) -> None:
        """Set a value that no other rank sets."""
        with self._lock:
            self._values[key] = value
            if self._is_sending:
                self._num_sent += 1
                for peer in range(self._comm.size):
                    if peer != self._comm.rank:
                        self._sent.append(self._comm.isend((key, value), dest=peer, tag=TAG))

    def get(self, key: str) -> bytes:
        """Return a value, once its rank has set it."""
        self.wait([key])
        return self._values[key]

    def check(self, keys: Sequence[str]) -> bool:
        """Whether all of these values are here."""
        return all(key in self._values for key in keys)

    def wait(self, keys: Sequence[str], timeout: timedelta | None = None) -> None:
        """Wait until these values are here.

        Raises:
            LookupError: if they were not set in time, or not before `settle`.
        """
        end_s = None if timeout is None else time.monotonic() + timeout.total_seconds()
        backoff = Backoff()
        while not self.check(keys):
            if not self._is_receiving or (end_s is not None and time.monotonic() > end_s):
                raise LookupError(f"no rank of the group has set {', '.join(keys)}")
            self._receive()
            backoff.wait()

    def settle(self) -> None:
        """Complete all messages, once the ranks are connected; collective over the group."""
        with self._lock:
            self._is_sending = False
            mine = np.array([self._num_sent], np.int64)
        expected = np.empty(self._comm.size, np.int64)
        wait_for(self._comm.Iallgather(mine, expected))
        expected[self._comm.rank] = 0
        backoff = Backoff()
        while (self._num_received < expected).any():
            self._receive()
            backoff.wait()
        with self._lock:
            self._is_receiving = False
        for message in self._sent:
            wait_for(message)
        self._sent.clear()

    def _receive(self) -> None:
        """Take all messages that are here."""
        with self._lock:
            status = MPI.Status()
            while self._is_receiving and self._comm.iprobe(MPI.ANY_SOURCE, TAG, status):
                source = status.Get_source()
                key, value = self._comm.recv(source=source, tag=TAG)
                self._values[key] = value
                self._num_received[source] += 1
