"""Give this process its GPU or its cores, before PyTorch starts to use them, and its errors our names."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator

import torch
import torch.distributed as dist

from hpcbal.errors import UserCodeError
from hpcbal.training.devices import LocalSlots, check_gpus_seen, thread_counts

_BACKENDS = {"cpu": "gloo", "cuda": "nccl", "xpu": "xccl"}
"""Of torch.distributed, by type of device; PyTorch for ROCm also says cuda and nccl, and means rccl."""

_NO_MEMORY = ("can't allocate memory", "out of memory")
"""How PyTorch says that memory of the host, or of a device, has ended."""


def setup_torch(slots: LocalSlots) -> tuple[str, torch.device]:
    """Give this process its GPU, or its share of the cores; call before any other use of PyTorch.

    Args:
        slots: the trainers of the node.

    Returns:
        The device for people and for the key of measured rates, and the device.

    Raises:
        ClusterError: if two trainers would use one GPU, or PyTorch misses GPUs that were given.
    """
    intra, inter = thread_counts(os.environ, slots.threads())
    torch.set_num_threads(intra)
    with contextlib.suppress(RuntimeError):  # it has begun to compute: they stay as they are
        torch.set_num_interop_threads(inter)
    kind = "xpu" if torch.xpu.is_available() and not torch.cuda.is_available() else "cuda"
    devices = torch.xpu if kind == "xpu" else torch.cuda
    index = slots.gpu("PyTorch", 0 if slots.wanted == "cpu" else devices.device_count())
    if index is None:
        versions = (torch.version.cuda, torch.version.hip, getattr(torch.version, "xpu", None))
        is_for_gpus = any(version is not None for version in versions)
        check_gpus_seen("PyTorch", slots.wanted, slots.granted, built_with_gpus=is_for_gpus)
        return f"cpu, {intra} thread{'s' if intra > 1 else ''}", torch.device("cpu")
    devices.set_device(index)
    return devices.get_device_name(index), torch.device(kind, index)


def distributed_backend(place: torch.device) -> str | None:
    """Return the backend of torch.distributed for tensors on a device; None if this PyTorch has none."""
    name = _BACKENDS.get(place.type)
    if name is None or not dist.is_available() or not dist.is_backend_available(name):
        return None
    return name


@contextlib.contextmanager
def memory_errors() -> Iterator[None]:
    """Turn PyTorch's out-of-memory errors into `MemoryError`."""
    try:
        yield
    except RuntimeError as error:
        if any(words in str(error) for words in _NO_MEMORY):
            raise MemoryError(str(error)) from error
        raise
    except UserCodeError as error:  # the memory ended while a user's code was running
        cause = error.__cause__
        if isinstance(cause, RuntimeError) and any(words in str(cause) for words in _NO_MEMORY):
            raise MemoryError(str(error)) from error
        raise
