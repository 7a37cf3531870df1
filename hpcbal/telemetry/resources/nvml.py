"""Find a GPU in NVML, NVIDIA's library for management."""

from __future__ import annotations

from typing import Any

from hpcbal import env

_UUIDS = ("GPU-", "MIG-")


def wrong_order(gpu: str) -> str | None:
    """Return why NVML would take another GPU for this one; None if it does not.

    Indices and bus ids agree with NVML's only with `CUDA_DEVICE_ORDER=PCI_BUS_ID`.

    Args:
        gpu: an index, a UUID or a PCI bus id, from `visible_gpus`.
    """
    order = env.read("CUDA_DEVICE_ORDER")
    if order == env.DRIVERS_ORDER or gpu.startswith(_UUIDS):
        return None
    return f"CUDA_DEVICE_ORDER is {order}, but NVML knows only {env.DRIVERS_ORDER}; unset it"


def handle_of(nvml: Any, gpu: str) -> Any:
    """Return the device handle for an index, a UUID or a PCI bus id.

    Args:
        nvml: the module `pynvml`, after `nvmlInit`.
        gpu: see `wrong_order`.
    """
    if gpu.isdigit():
        return nvml.nvmlDeviceGetHandleByIndex(int(gpu))
    if gpu.startswith(_UUIDS):
        return nvml.nvmlDeviceGetHandleByUUID(gpu)
    return nvml.nvmlDeviceGetHandleByPciBusId(gpu)
