"""How full the memory of this rank's GPU is, as far as TensorFlow in this process knows."""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable
from typing import Any

log = logging.getLogger(__name__)

CONTEXT = "tensorflow.python.eager.context"
GPU = "GPU:0"
"""A trainer shows TensorFlow one GPU, its own."""


class TensorFlowMemory:
    """The most that TensorFlow has needed so far, of what it may take.

    It may take what was free when it started, or what the user allowed it: the `memory_limit` of its device,
    which it has an interface for in C and not, documented, in Python. `list_local_devices` would not do: it
    makes devices anew, and fails where this process uses another GPU than the node's first.

    Left out is what other processes take since then, and what gaps between tensors cost. The peak is told,
    not the bytes in use: between two steps a batch holds none.

    TensorFlow is neither imported nor started for this. Where it does not run, has no GPU, or keeps no count
    (the last is logged once), nothing is told.
    """

    def __init__(self) -> None:
        self._gave_up = False

    def begin(self) -> None:
        """Forget the peak so far."""
        self._of_gpu(lambda memory, limit_bytes: memory.reset_memory_stats(GPU))

    def read(self) -> float | None:
        """The share, 0 to 1; None where it cannot be told."""

        def share(memory: Any, limit_bytes: int) -> float:
            peak_bytes = memory.get_memory_info(GPU)["peak"]
            return min(max(float(peak_bytes) / limit_bytes, 0.0), 1.0)

        return self._of_gpu(share)

    def _of_gpu(self, ask: Callable[[Any, int], Any]) -> Any:
        """What `ask` gets of TensorFlow's functions and the limit; None where they are not to be had."""
        if self._gave_up:
            return None
        try:
            limit_bytes = limit_of(GPU)
            return ask(sys.modules["tensorflow"].config.experimental, limit_bytes) if limit_bytes else None
        except (AttributeError, KeyError, ValueError) as error:  # another version, or no counts
            log.warning("TensorFlow does not tell what it takes of the GPU's memory: %r", error)
            self._gave_up = True
            return None


def limit_of(device: str) -> int | None:
    """Bytes that TensorFlow may take on a device, `GPU:0` or `CPU:0`; None if it does not run or has none.

    Raises:
        AttributeError, KeyError: this version of TensorFlow keeps its devices elsewhere.
    """
    context = _running_context()
    if context is None:
        return None
    python = sys.modules["tensorflow.python.pywrap_tfe"]
    session = sys.modules["tensorflow.python.client.pywrap_tf_session"]
    devices = python.TFE_ContextListDevices(context)
    try:
        for index in range(python.TF_DeviceListCount(devices)):
            if python.TF_DeviceListName(devices, index).endswith(f"device:{device}"):
                return int(session.TF_DeviceListMemoryBytes(devices, index))
    finally:
        python.TF_DeleteDeviceList(devices)
    return None


def _running_context() -> Any:
    module = sys.modules.get(CONTEXT)
    context = module.context_safe() if module is not None else None
    return context._context_handle if context is not None else None
