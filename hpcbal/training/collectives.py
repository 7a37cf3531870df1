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
    from hpcbal.comm.mpi import takes_gpu_memory

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

GLOO = "gloo"
"""The backend of torch.distributed for CPUs, where MPI is as fast: `auto` does not choose it."""


@dataclass(frozen=True, slots=True)
class ChosenCollective:
    """The libraries that sum the gradients of a start.

    Attributes:
        name: key of `COLLECTIVES`.
        why: the reason, for people.
        distributed: the backend of torch.distributed that sums those of PyTorch instead; None: none.
    """

    name: str
    why: str
    distributed: str | None = None

    def __str__(self) -> str:
        if self.distributed is None:
            return f"{TITLES[self.name]} sums the gradients ({self.why})"
        return (
            f"torch.distributed ({self.distributed}) sums the gradients of PyTorch, {TITLES[self.name]} all "
            f"others ({self.why})"
        )


def choose_collective(
    wanted: str, faults: Sequence[str | None], distributed: Sequence[str | None] = ()
) -> ChosenCollective:
    """Choose what sums gradients, equally on all ranks.

    Args:
        wanted: torch, horovod, mpi or auto: torch.distributed for PyTorch if all trainers have GPUs, and for
            the rest Horovod if it works on all trainers, otherwise MPI.
        faults: what `fault_for` returned on each trainer.
        distributed: the backend of torch.distributed of each trainer, if it has one.

    Raises:
        InputError: if `wanted` is torch, and the trainers have different backends.
    """
    backends = set(distributed)
    shared = backends.pop() if len(backends) == 1 else None
    if wanted == "torch":
        if shared is None:
            found = ", ".join(sorted(str(name) for name in set(distributed)))
            raise InputError(
                f"backend.collective is torch, but the slots have different backends of torch.distributed "
                f"({found}): some have a GPU and some have none; set backend.collective to auto or mpi, or "
                "slots.device to cpu"
            )
        return ChosenCollective("mpi", "backend.collective: torch", shared)
    if wanted != "auto":
        return ChosenCollective(wanted, f"backend.collective: {wanted}")
    fault = next((fault for fault in faults if fault is not None), None)
    name = "horovod" if fault is None else "mpi"
    if shared not in (None, GLOO) and len(distributed) > 1:
        return ChosenCollective(name, "backend.collective: auto; the slots have GPUs", shared)
    return ChosenCollective(name, f"backend.collective: auto; {fault or 'it is installed and works'}")


def open_groups(chosen: ChosenCollective, trainer_comm: MPI.Intracomm) -> TrainerGroups:
    """Return the trainer groups whose gradients the chosen libraries sum.

    Args:
        trainer_comm: all trainers; owned by the caller.
    """
    groups = COLLECTIVES[chosen.name](trainer_comm)
    if chosen.distributed is None:
        return groups
    from hpcbal.training.torch.distributed import TorchGroups

    return TorchGroups(groups, chosen.distributed)


def check_distributed(wanted: str, backend: str | None, *, has_torch: bool) -> None:
    """Refuse `backend.collective: torch` where torch.distributed cannot sum anything.

    Args:
        wanted: the value.
        backend: the one of torch.distributed for this trainer's device; None if there is none.
        has_torch: whether a DNN is of PyTorch.

    Raises:
        InputError: says why it cannot.
    """
    if wanted != "torch" or (has_torch and backend is not None):
        return
    if has_torch:
        why = "this build of PyTorch has no torch.distributed for its device; install another build"
    else:
        why = "no DNN is of PyTorch; take DNNs of PyTorch"
    raise InputError(
        f"backend.collective is torch, but {why}, or set backend.collective to auto, horovod or mpi"
    )


def fault_for(wanted: str, num_trainers: int) -> str | None:
    """Return why this trainer cannot sum gradients with Horovod, for people; None if it can, or need not.

    Horovod is loaded only if it may be used: not for `mpi` and `torch`, and with `auto` not for a single
    trainer, which has nothing to sum.

    Raises:
        InputError: if `wanted` is horovod and it cannot be used here.
    """
    if wanted in ("mpi", "torch"):
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
