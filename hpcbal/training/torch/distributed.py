"""Sum gradients of PyTorch where they lie, with torch.distributed: one process group per trainer group."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any, TypeVar

import numpy as np
import torch
import torch.distributed as dist
from mpi4py import MPI

from hpcbal.comm.backoff import Backoff
from hpcbal.comm.group_comm import GroupComm
from hpcbal.comm.mpi import MpiGroupComm, wait_for
from hpcbal.errors import HpcbalError, InputError
from hpcbal.safe_text import one_line, shortened
from hpcbal.training.backend import GradientCollective
from hpcbal.training.groups import TrainerGroups, agree
from hpcbal.training.torch.setup import memory_errors
from hpcbal.training.weights import Array

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


TIMEOUT = timedelta(hours=1)
"""When torch.distributed itself gives up. The ranks have met before they sum, so no sum takes long, and a
rank that is lost ends the job earlier (`hpcbal.runtime.health.liveness`)."""

T = TypeVar("T")

LOST_S = 5.0
"""How long a rank whose sum has failed waits until a rank that was lost is reported as the reason."""


class TorchCollective(GradientCollective):
    """All-reduce of tensors of PyTorch on their device; all else goes through another collective.

    The ranks first meet by MPI, with a backoff, because other ranks may compute for a long time: a sum that
    waits on a GPU keeps it, and a core, busy, and a rank that dies meanwhile would not be missed.

    The process group is made with the first sum of tensors: a group that trains a Keras model has none. It is
    the default group of torch.distributed, so that only documented functions are needed.

    Args:
        other: of the same ranks, for arrays, other tensors and short vectors; owned by the caller.
        comm: communicator of the group, owned by the caller.
        backend: of torch.distributed, for the device where the tensors lie.
    """

    def __init__(self, other: GradientCollective, comm: MpiGroupComm, backend: str) -> None:
        self.size, self.rank, self.meets = other.size, other.rank, other.meets
        self._other = other
        self._comm = comm
        self._backend = backend
        self._buffer: torch.Tensor | None = None
        self._store: MpiStore | None = None

    def sum(self, tensors: Sequence[Any], status: Array) -> tuple[Sequence[Any], Array]:
        """Sum tensors of PyTorch in one buffer; returns views of it.

        Raises:
            GroupFailed: on all ranks, if one of them has no memory for the buffer, or user's code has made
                the process group.
            HpcbalError: if torch.distributed cannot sum, for example because a rank was lost.
        """
        if not tensors or not torch.is_tensor(tensors[0]):
            return self._other.sum(tensors, status)
        with torch.no_grad():
            size = sum(tensor.numel() for tensor in tensors)
            buffer = self._buffer_like(tensors[0], size + status.size)
            last = torch.from_numpy(status).to(buffer)
            torch.cat([*(tensor.reshape(-1) for tensor in tensors), last], out=buffer)
            self.meet()
            if self._store is None:
                self._connect(buffer.device)

            def reduce() -> Array:
                dist.all_reduce(buffer)
                return np.array(buffer[size:].cpu(), np.float64)  # waits for the device

            total = self._do("sum gradients", reduce)
            sums, stop = [], 0
            for tensor in tensors:
                start, stop = stop, stop + tensor.numel()
                sums.append(buffer[start:stop].view(tensor.shape))
        return sums, total

    def _buffer_like(self, tensor: torch.Tensor, length: int) -> torch.Tensor:
        """The buffer for so many numbers; all ranks make it in the same step, and fail together."""
        old = self._buffer
        if old is not None and old.numel() == length and old.dtype == tensor.dtype:
            return old
        error, buffer = None, tensor
        self._buffer = old = None
        try:
            if self._store is None and dist.is_initialized():
                raise InputError(
                    "code of the user has called torch.distributed.init_process_group, but with "
                    "backend.collective: torch hpcbal makes the process group of each trainer group; remove "
                    "the call, or set backend.collective to mpi"
                )
            with memory_errors():
                buffer = torch.empty(length, dtype=tensor.dtype, device=tensor.device)
        except Exception as failure:  # agree reports it to the peers
            error = failure
        agree(self._comm, error)
        self._buffer = buffer
        return buffer

    def _connect(self, device: torch.device) -> None:
        """Make the process group and all its connections; collective over the group."""
        store, hook = MpiStore(self._comm.mpi), sys.excepthook

        def connect() -> None:
            dist.init_process_group(
                self._backend,
                store=store,
                rank=self.rank,
                world_size=self.size,
                timeout=TIMEOUT,
                device_id=None if device.type == "cpu" else device,
            )
            first = torch.ones((), device=device)
            dist.all_reduce(first)
            assert int(first) == self.size

        try:
            self._do("connect the ranks of a group", connect)
        finally:
            sys.excepthook = hook  # each process group would put another one on top
        store.settle()
        self._store = store

    def _do(self, what: str, work: Callable[[], T]) -> T:
        try:
            return work()
        except (RuntimeError, LookupError) as error:
            time.sleep(LOST_S)
            text = shortened(one_line(str(error).strip().partition("\n")[0]))
            raise HpcbalError(
                f"torch.distributed ({self._backend}) could not {what} ({text}); see the log of this rank, "
                "and docs/pytorch.md for which network it uses; or set backend.collective to mpi"
            ) from error

    def meet(self) -> None:
        self._other.meet()

    def exchange(self, numbers: Array) -> None:
        """Sums by MPI, which is faster for a short vector."""
        self._other.exchange(numbers)

    def tell(self, numbers: Array) -> None:
        self._other.tell(numbers)

    def consult(self, numbers: Array, answer: Callable[[Array], Array], length: int) -> Array:
        return self._other.consult(numbers, answer, length)

    def close(self) -> None:
        """Free the process group, once no rank sums any more, and the buffer."""
        self._buffer = None
        if self._store is not None:
            self._other.meet()
            dist.destroy_process_group()
            self._store = None


class TorchGroups(TrainerGroups):
    """Trainer groups whose tensors of PyTorch torch.distributed sums; see `TrainerGroups`.

    Args:
        others: form the groups, and sum what is not of PyTorch.
        backend: see `TorchCollective`.
    """

    def __init__(self, others: TrainerGroups, backend: str) -> None:
        self._others = others
        self._backend = backend
        self._collective_by_group: dict[tuple[int, ...], TorchCollective] = {}

    def open(self, groups: Sequence[tuple[int, ...]]) -> None:
        """Form the groups; their process groups are made when they first sum."""
        self._close()
        self._others.open(groups)

    def open_one(self, group: tuple[int, ...]) -> None:
        """See `TrainerGroups.open_one`; torch.distributed has one default group, so earlier ones end."""
        self._close()
        self._others.open_one(group)

    def close_one(self, group: tuple[int, ...]) -> None:
        """See `TrainerGroups.close_one`."""
        self._close()
        self._others.close_one(group)

    def comm_of(self, group: tuple[int, ...]) -> GroupComm:
        """See `TrainerGroups.comm_of`."""
        return self._others.comm_of(group)

    def collective_of(self, group: tuple[int, ...]) -> GradientCollective:
        """The gradient collective of one of this trainer's groups."""
        if len(group) == 1:
            return self._others.collective_of(group)
        if group not in self._collective_by_group:
            comm = self._others.comm_of(group)
            assert isinstance(comm, MpiGroupComm), comm
            other = self._others.collective_of(group)
            self._collective_by_group[group] = TorchCollective(other, comm, self._backend)
        return self._collective_by_group[group]

    def close_all(self) -> None:
        """Free the process groups, and dissolve the groups."""
        self._close()
        self._others.close_all()

    def shutdown(self) -> None:
        """Free everything; collective over all trainers."""
        self._close()
        self._others.shutdown()

    def _close(self) -> None:
        for collective in self._collective_by_group.values():
            collective.close()
        self._collective_by_group.clear()
