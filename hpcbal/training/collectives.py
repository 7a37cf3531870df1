"""The libraries that sum gradients, by name; none is imported before it is used."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from hpcbal.errors import InputError
from hpcbal.safe_text import one_line, shortened
from hpcbal.training.groups import TrainerGroups

if TYPE_CHECKING:
    from mpi4py import MPI

    from hpcbal.training.mpi_collective import Packer


def _horovod_groups(trainer_comm: MPI.Intracomm) -> TrainerGroups:
    from hpcbal.training.horovod_collective import HorovodGroups

    return HorovodGroups(trainer_comm)


def _mpi_groups(trainer_comm: MPI.Intracomm) -> TrainerGroups:
    from hpcbal.training.mpi_collective import MpiGroups

    return MpiGroups(trainer_comm, _packer())


def _packer() -> Packer | None:
    """Return a packer of tensors of GPUs, if TensorFlow is loaded and MPI says that it takes their memory."""
    from hpcbal.comm.mpi_library import takes_gpu_memory

    if "hpcbal.training.keras.tensorflow_backend" not in sys.modules or not takes_gpu_memory():
        return None
    from hpcbal.training.keras.device_packing import DevicePacker

    return DevicePacker()


COLLECTIVES: dict[str, Callable[[MPI.Intracomm], TrainerGroups]] = {
    "horovod": _horovod_groups,
    "mpi": _mpi_groups,
}
"""By their names in `backend.collective` of the config, which may also be `auto`."""

TITLES = {"horovod": "Horovod", "mpi": "MPI"}


@dataclass(frozen=True, slots=True)
class ChosenCollective:
    """The library that sums the gradients of a start.

    Attributes:
        name: key of `COLLECTIVES`.
        why: the reason, for people.
    """

    name: str
    why: str

    def __str__(self) -> str:
        return f"{TITLES[self.name]} sums the gradients ({self.why})"


def choose_collective(wanted: str, faults: Sequence[str | None]) -> ChosenCollective:
    """Choose what sums gradients, equally on all ranks.

    Args:
        wanted: horovod, mpi or auto: Horovod if it works on all trainers, otherwise MPI.
        faults: what `fault_for` returned on each trainer.
    """
    if wanted != "auto":
        return ChosenCollective(wanted, f"backend.collective: {wanted}")
    fault = next((fault for fault in faults if fault is not None), None)
    if fault is not None:
        return ChosenCollective("mpi", f"backend.collective: auto; {fault}")
    return ChosenCollective("horovod", "backend.collective: auto; it is installed and works")


def fault_for(wanted: str, num_trainers: int) -> str | None:
    """Return why this trainer cannot sum gradients with Horovod, for people; None if it can, or need not.

    Horovod is loaded only if it may be used: not for `mpi`, and with `auto` not for a single trainer, which
    has nothing to sum.

    Raises:
        InputError: if `wanted` is horovod and it cannot be used here.
    """
    if wanted == "mpi":
        return None
    if wanted == "auto" and num_trainers == 1:
        return "there is one slot, and nothing to sum"
    fault = fault_of_horovod()
    if fault is not None and wanted == "horovod":
        raise InputError(
            f"backend.collective is horovod, but {fault} here; install it (see docs/troubleshooting.md), or "
            "set backend.collective to auto or mpi"
        )
    return fault


def fault_of_horovod() -> str | None:
    """Load Horovod, and return why it cannot be used in this process, for people; None if it can."""
    if importlib.util.find_spec("horovod") is None:
        return "Horovod is not installed"
    try:
        from hpcbal.training import horovod_collective
    except Exception as error:  # a build for another TensorFlow or MPI fails in many ways
        text = shortened(one_line(str(error).strip().partition("\n")[0]))
        return f"Horovod cannot be loaded ({type(error).__name__}: {text})"
    return horovod_collective.fault()
