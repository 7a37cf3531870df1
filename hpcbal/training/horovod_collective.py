"""Sum gradients with Horovod: one process set per trainer group, added and removed while running."""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from mpi4py import MPI

from hpcbal.comm.group_comm import GroupComm
from hpcbal.comm.mpi import loaded_libraries
from hpcbal.training.backend import GradientCollective, LocalCollective
from hpcbal.training.mpi_collective import MpiCollective, MpiGroups, on_host
from hpcbal.training.weights import Array

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
os.environ["HOROVOD_DYNAMIC_PROCESS_SETS"] = "1"

import horovod.tensorflow as hvd
import tensorflow as tf


def fault() -> str | None:
    """Return why this Horovod cannot work together with mpi4py here, for people; None if it can."""
    if not hvd.mpi_built():
        return "Horovod was built without MPI"
    libraries = loaded_libraries()
    if len(libraries) > 1:  # mpi4py's communicators mean nothing to another MPI
        return f"Horovod was built for another MPI than mpi4py ({' and '.join(libraries)})"
    if MPI.Query_thread() != MPI.THREAD_MULTIPLE:
        return "Horovod needs an MPI that several threads may call, and this one does not allow it"
    return None


class HorovodCollective(GradientCollective):
    """Grouped all-reduce over a process set.

    The call is eager, outside the backend's traced functions, so that a model is not traced again for every
    new process set. `hvd.join` is not used: it does not support process sets.

    Args:
        process_set: initialised set of all ranks of the group; whoever added it removes it.
        comm: communicator in the group's order (Horovod sorts its sets, we do not); owned by the caller.
        name: name of the operation, equal on all ranks of the group.
    """

    meets = False

    def __init__(self, process_set: hvd.ProcessSet, comm: MPI.Intracomm, name: str) -> None:
        self.size: int = comm.size
        self.rank: int = comm.rank
        self._process_set = process_set
        self._by_mpi = MpiCollective(comm)
        self._name = name

    def sum(self, tensors: Sequence[Any], status: Array) -> tuple[Sequence[Any], Array]:
        """Sum and return TensorFlow tensors (NumPy arrays are converted).

        A status without tensors is sent by MPI, in microseconds; Horovod needs several of its 1 ms cycles.
        """
        if not tensors:
            return self._by_mpi.sum((), status)
        own = [tf.convert_to_tensor(on_host(tensor)) for tensor in tensors]
        dtype = own[0].dtype
        own.append(tf.convert_to_tensor(status.astype(dtype.as_numpy_dtype)))
        *sums, total = hvd.grouped_allreduce(own, op=hvd.Sum, process_set=self._process_set, name=self._name)
        return sums, total.numpy().astype(np.float64)

    def exchange(self, numbers: Array) -> None:
        """Sums by MPI, which is faster within a step and needs no names."""
        self._by_mpi.exchange(numbers)

    def tell(self, numbers: Array) -> None:
        self._by_mpi.tell(numbers)

    def consult(self, numbers: Array, answer: Callable[[Array], Array], length: int) -> Array:
        """Not allowed: Horovod's ranks do not meet before they sum."""
        raise NotImplementedError("Horovod's ranks do not meet before they sum")

    def meet(self) -> None:
        self._by_mpi.meet()

    def close(self) -> None:
        """Do nothing: `HorovodGroups` removes the process set."""


class HorovodGroups:
    """Trainer groups as Horovod process sets; see `hpcbal.training.groups.TrainerGroups`.

    Horovod is initialised at the first `open`, only on the trainers: it takes over every rank that it is
    given, and the scheduler and preprocessors must not take part in its background traffic.

    Args:
        trainer_comm: all trainers; owned by the caller, MPI with THREAD_MULTIPLE.
    """

    def __init__(self, trainer_comm: MPI.Intracomm) -> None:
        self._trainer_comm = trainer_comm
        self._comms = MpiGroups(trainer_comm)
        self._process_sets: list[hvd.ProcessSet] = []
        self._collective_by_group: dict[tuple[int, ...], GradientCollective] = {}
        self._summed_by_mpi: set[tuple[int, ...]] = set()
        self._names = itertools.count()
        self._initialised = False

    def open(self, groups: Sequence[tuple[int, ...]]) -> None:
        """Add a process set for each group; every trainer adds all of them, in the same order."""
        if not self._initialised:
            hvd.init(comm=self._trainer_comm)
            self._initialised = True
        self.close_all()
        self._comms.open(groups)
        for group in groups:
            name = f"hpcbal.group{next(self._names)}"
            process_set = self._add(group) if len(group) > 1 else None
            if self._trainer_comm.rank in group:
                self._collective_by_group[group] = (
                    HorovodCollective(process_set, self._comms.comm_of(group).mpi, name)
                    if process_set is not None
                    else LocalCollective()
                )

    def open_one(self, group: tuple[int, ...]) -> None:
        """Form a group whose gradients MPI sums: all trainers would have to add a process set."""
        self._comms.open_one(group)
        self._summed_by_mpi.add(group)

    def close_one(self, group: tuple[int, ...]) -> None:
        """See `TrainerGroups.close_one`."""
        self._summed_by_mpi.discard(group)
        self._comms.close_one(group)

    def _add(self, group: tuple[int, ...]) -> hvd.ProcessSet:
        if len(group) == hvd.size():
            return hvd.global_process_set  # Horovod refuses a second set of the same ranks
        process_set = hvd.add_process_set(list(group))
        self._process_sets.append(process_set)
        return process_set

    def comm_of(self, group: tuple[int, ...]) -> GroupComm:
        """See `TrainerGroups.comm_of`; ranks have the group's order."""
        return self._comms.comm_of(group)

    def collective_of(self, group: tuple[int, ...]) -> GradientCollective:
        """The gradient collective of one of this trainer's groups."""
        if group in self._summed_by_mpi:
            return self._comms.collective_of(group)
        return self._collective_by_group[group]

    def close_all(self) -> None:
        """Remove the process sets in the order in which they were added."""
        self._collective_by_group.clear()
        self._summed_by_mpi.clear()
        for process_set in self._process_sets:
            hvd.remove_process_set(process_set)
        self._process_sets.clear()
        self._comms.close_all()

    def shutdown(self) -> None:
        """Remove the process sets and end Horovod."""
        self.close_all()
        if self._initialised:
            hvd.shutdown()
            self._initialised = False
