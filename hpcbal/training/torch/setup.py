"""Give this process its GPU or its cores, before PyTorch starts to use them, and its errors our names."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Sequence

import torch
import torch.distributed as dist

from hpcbal.errors import UserCodeError
from hpcbal.training.devices import check_gpus_seen, gpu_of_slot, thread_counts, threads_of_slot

_BACKENDS = {"cpu": "gloo", "cuda": "nccl", "xpu": "xccl"}
"""Of torch.distributed, by type of device; PyTorch for ROCm also says cuda and nccl, and means rccl."""

_NO_MEMORY = ("can't allocate memory", "out of memory")
"""How PyTorch says that memory of the host, or of a device, has ended."""


def setup_torch(
    local_slot: int,
    num_local_slots: int,
    cores_of_slots: Sequence[frozenset[int]] | None = None,
    *,
    wanted: str = "auto",
    granted: str | None = None,
) -> tuple[str, torch.device]:
    """Give this process its GPU, or its share of the cores; call before any other use of PyTorch.

    Args:
        local_slot: index of this trainer on its node, from 0.
        num_local_slots: trainers on the node.
        cores_of_slots: affinity masks of the node's trainers, if the caller has gathered them.
        wanted: `slots.device`.
        granted: how the batch system gave GPUs, from `granted_gpus`.

    Returns:
        The device for people and for the key of measured rates, and the device.

    Raises:
        ClusterError: if the node has more trainers than GPUs, or PyTorch misses GPUs that were given.
    """
    share = threads_of_slot(frozenset(os.sched_getaffinity(0)), num_local_slots, cores_of_slots)
    intra, inter = thread_counts(os.environ, share)
    torch.set_num_threads(intra)
    with contextlib.suppress(RuntimeError):  # it has begun to compute: they stay as they are
        torch.set_num_interop_threads(inter)
    num_gpus = 0 if wanted == "cpu" else torch.cuda.device_count()
    index = gpu_of_slot(num_gpus, local_slot)
    if index is None:
        check_gpus_seen("PyTorch", wanted, granted, built_with_gpus=torch.version.cuda is not None)
        return f"cpu, {intra} thread{'s' if intra > 1 else ''}", torch.device("cpu")
    torch.cuda.set_device(index)
    return torch.cuda.get_device_name(index), torch.device("cuda", index)


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
