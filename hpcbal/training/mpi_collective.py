"""Sum gradients with mpi4py: one buffer per group, gathered, reduced in place, returned as views."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

import numpy as np
from mpi4py import MPI

from hpcbal.comm.mpi import MpiGroupComm, wait_for
from hpcbal.training.backend import GradientCollective, LocalCollective
from hpcbal.training.groups import check_groups
from hpcbal.training.weights import Array

_QUESTION, _ANSWER = 1, 2
"""Tags of messages on a group's communicator."""


class Packed(Protocol):
    """Tensors and a status in one buffer.

    Attributes:
        buffer: contiguous, of the tensors' type, in a form that mpi4py takes; MPI replaces it by the sums.
    """

    buffer: Any

    def unpack(self) -> tuple[Sequence[Any], Array]:
        """Return tensors and status, float64, from the buffer; the tensors may be views of it."""


class Packer(Protocol):
    """Packs tensors that do not lie in the host's memory.

    The order in the buffer is that of the tensors, then the status, as in the host's memory: other ranks of
    the group may pack theirs there.
    """

    def pack(self, tensors: Sequence[Any], status: Array) -> Packed | None:
        """Pack tensors of one type; None if this packer is not for them."""


def on_host(tensor: Any) -> Any:
    """The same tensor; one of PyTorch that lies on a device is copied to the host's memory."""
    return tensor if getattr(tensor, "is_cpu", True) else tensor.cpu()


class _PackedOnHost(Packed):
    """Views of the first part of a buffer.

    Args:
        arrays: copied into the buffer.
        buffer: of the arrays' type, at least as long as all of them and the status.
    """

    def __init__(self, arrays: Sequence[Array], status: Array, buffer: Array) -> None:
        self._views, stop = [], 0
        for array in arrays:
            start, stop = stop, stop + array.size
            self._views.append(buffer[start:stop].reshape(array.shape))
            self._views[-1][...] = array
        self.buffer = buffer[: stop + status.size]
        self._status = self.buffer[stop:]
        self._status[...] = status

    def unpack(self) -> tuple[Sequence[Array], Array]:
        return self._views, self._status.astype(np.float64)


class MpiCollective(GradientCollective):
    """All-reduce over an mpi4py communicator.

    The ranks first meet in a non-blocking barrier and wait with a backoff, because other ranks may compute
    for a long time. Then they use the blocking all-reduce, which has better algorithms than the non-blocking
    one, and in which no rank waits long.

    Args:
        comm: communicator of the group; whoever made it frees it.
        packer: for tensors on a device; None: all are copied to the host's memory.
    """

    meets = True

    def __init__(self, comm: MPI.Intracomm, packer: Packer | None = None) -> None:
        self.size: int = comm.size
        self.rank: int = comm.rank
        self._comm = comm
        self._packer = packer
        self._buffer = np.empty(0)
        self._have_met = False
        self._answers: list[MPI.Request] = []  # of the master: not known to be complete

    def sum(self, tensors: Sequence[Any], status: Array) -> tuple[Sequence[Any], Array]:
        """Accepts anything that NumPy can view, or the packer takes; returns views of one buffer."""
        packed = self._packer.pack(tensors, status) if self._packer is not None else None
        if packed is None:
            packed = self._pack_on_host(tensors, status)
        self.meet()
        self._comm.Allreduce(MPI.IN_PLACE, packed.buffer, op=MPI.SUM)
        return packed.unpack()

    def meet(self) -> None:
        if not self._have_met:
            wait_for(self._comm.Ibarrier())
        self._have_met = False

    def _pack_on_host(self, tensors: Sequence[Any], status: Array) -> _PackedOnHost:
        arrays = [np.asarray(on_host(tensor)) for tensor in tensors]
        dtype = arrays[0].dtype if arrays else status.dtype
        if any(array.dtype != dtype for array in arrays):
            raise TypeError(f"tensors of one type expected, got {sorted({str(a.dtype) for a in arrays})}")
        length = sum(array.size for array in arrays) + status.size
        if self._buffer.size < length or self._buffer.dtype != dtype:
            self._buffer = np.empty(length, dtype)
        return _PackedOnHost(arrays, status, self._buffer)

    def exchange(self, numbers: Array) -> None:
        """Sums without the barrier of `sum`, which would double the cost of a short vector."""
        wait_for(self._comm.Iallreduce(MPI.IN_PLACE, numbers, op=MPI.SUM))

    def tell(self, numbers: Array) -> None:
        """The message goes directly to each rank, see `consult`."""
        if self.rank == 0:
            self._answer(numbers)
            self._end_answers()
        else:
            wait_for(self._comm.Irecv(numbers, 0, _ANSWER))

    def consult(self, numbers: Array, answer: Callable[[Array], Array], length: int) -> Array:
        """Replaces the barrier in `sum`.

        Messages go directly to the master and back: in a tree, each hop would wait for a rank that sleeps
        between two polls, and with hundreds of ranks the master's decision takes longer than its messages.
        """
        self._have_met = True
        if self.rank != 0:
            answered = np.empty(length)
            coming = self._comm.Irecv(answered, 0, _ANSWER)
            self._comm.Send(numbers, 0, _QUESTION)
            wait_for(coming)
            return answered
        everyone = np.empty((self.size, numbers.size))
        everyone[0] = numbers
        for question in [self._comm.Irecv(everyone[i], i, _QUESTION) for i in range(1, self.size)]:
            wait_for(question)
        answered = answer(everyone)
        self._answer(answered)
        return answered

    def _answer(self, numbers: Array) -> None:
        """Send the master's numbers to all other ranks, without waiting until they have received them.

        Where ranks share cores, each receives its message only when it has a turn. If an all-reduce follows,
        the master need not wait for that: all ranks make progress in the all-reduce.
        """
        self._end_answers()
        kept = numbers.copy()  # each request keeps its buffer alive
        self._answers = [self._comm.Isend(kept, i, _ANSWER) for i in range(1, self.size)]

    def _end_answers(self) -> None:
        for answer in self._answers:
            wait_for(answer)
        self._answers = []

    def close(self) -> None:
        """Complete what was sent, and free the buffer."""
        self._end_answers()
        self._buffer = np.empty(0)


class MpiGroups:
    """Trainer groups as communicators; see `hpcbal.training.groups.TrainerGroups`.

    Args:
        trainer_comm: all trainers; owned by the caller.
        packer: see `MpiCollective`.
    """

    def __init__(self, trainer_comm: MPI.Intracomm, packer: Packer | None = None) -> None:
        self._trainer_comm = trainer_comm
        self._packer = packer
        self._comm_by_group: dict[tuple[int, ...], MpiGroupComm] = {}
        self._collective_by_group: dict[tuple[int, ...], GradientCollective] = {}
        self._formed_alone: set[tuple[int, ...]] = set()

    def open(self, groups: Sequence[tuple[int, ...]]) -> None:
        """Make a communicator for each group that this trainer belongs to."""
        check_groups(groups, self._trainer_comm.size)
        self.close_all()
        for group in groups:
            if self._trainer_comm.rank in group:
                self._form(group)

    def _form(self, group: tuple[int, ...]) -> None:
        everyone = self._trainer_comm.Get_group()
        members = everyone.Incl(list(group))
        everyone.Free()
        comm = self._trainer_comm.Create_group(members)
        members.Free()
        self._comm_by_group[group] = MpiGroupComm(comm)
        self._collective_by_group[group] = (
            LocalCollective() if comm.size == 1 else MpiCollective(comm, self._packer)
        )

    def open_one(self, group: tuple[int, ...]) -> None:
        """See `TrainerGroups.open_one`; a group of a round is used again."""
        if group not in self._comm_by_group:
            self._form(group)
            self._formed_alone.add(group)

    def close_one(self, group: tuple[int, ...]) -> None:
        """See `TrainerGroups.close_one`."""
        if group in self._formed_alone:
            self._formed_alone.remove(group)
            self._collective_by_group.pop(group).close()
            self._comm_by_group.pop(group).mpi.Free()

    def comm_of(self, group: tuple[int, ...]) -> MpiGroupComm:
        """See `TrainerGroups.comm_of`; ranks have the group's order."""
        return self._comm_by_group[group]

    def collective_of(self, group: tuple[int, ...]) -> GradientCollective:
        """The gradient collective of one of this trainer's groups."""
        return self._collective_by_group[group]

    def close_all(self) -> None:
        """Free the communicators."""
        for collective in self._collective_by_group.values():
            collective.close()
        self._collective_by_group.clear()
        for comm in self._comm_by_group.values():
            comm.mpi.Free()
        self._comm_by_group.clear()
        self._formed_alone.clear()

    def shutdown(self) -> None:
        """Free everything; collective over all trainers."""
        self.close_all()
