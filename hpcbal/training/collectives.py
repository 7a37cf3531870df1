"""The libraries that sum gradients, by name; none is imported before it is used."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from hpcbal.training.groups import TrainerGroups

if TYPE_CHECKING:
    from mpi4py import MPI


def _horovod_groups(trainer_comm: MPI.Intracomm) -> TrainerGroups:
    from hpcbal.training.horovod_collective import HorovodGroups

    return HorovodGroups(trainer_comm)


def _mpi_groups(trainer_comm: MPI.Intracomm) -> TrainerGroups:
    from hpcbal.training.mpi_collective import MpiGroups

    return MpiGroups(trainer_comm)


COLLECTIVES: dict[str, Callable[[MPI.Intracomm], TrainerGroups]] = {
    "horovod": _horovod_groups,
    "mpi": _mpi_groups,
}
"""By their names in `backend.collective` of the config."""
