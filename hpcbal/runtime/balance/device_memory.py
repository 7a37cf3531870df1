"""How full the memory of this rank's GPU is, by NVIDIA's management library and TensorFlow's own count."""

from __future__ import annotations

import importlib
import logging
import time
from collections.abc import Sequence
from typing import Any

from hpcbal import env
from hpcbal.runtime.balance.tensorflow_memory import TensorFlowMemory
from hpcbal.training.devices import gpu_of_slot

log = logging.getLogger(__name__)

INTERVAL_S = 0.2

_UUIDS = ("GPU-", "MIG-")


class DeviceMemory:
    """Share of the memory of one GPU that a rank's batches need, and others use.

    - Where this process is alone on the GPU, it is the peak of TensorFlow's own count since `begin`, of what
      TensorFlow may take: that is of the network that trains now. What NVML sees in use is more: TensorFlow
      takes memory in ever larger pieces and gives none back, so it includes what profiling and other networks
      once needed.
    - Where others use the GPU too, or TensorFlow does not count, it is what NVML sees in use, by whomever: a
      policy that gives a full GPU no more samples errs on the safe side.
    - Without NVML (another maker's GPUs), or when the driver refuses, nothing is known, and that is logged
      once; `balance.max_samples_per_gpu` bounds shares there.

    Attributes:
        needed: largest share that TensorFlow has needed since `begin`, or in earlier rounds of the group.

    Args:
        gpus: ids of the GPUs that this process may use, from `visible_gpus`; numbers and places agree with
            NVML's only with `CUDA_DEVICE_ORDER=PCI_BUS_ID`, which the TensorFlow backend sets.
        local_slot: number of this trainer on its node.
    """

    def __init__(self, gpus: Sequence[str], local_slot: int) -> None:
        self._nvml: Any = None
        self._tensorflow = TensorFlowMemory()
        self._share: float | None = None
        self._next_read_s = -1.0
        self._most_samples = 0
        self.needed = 0.0
        index = gpu_of_slot(len(gpus), local_slot)
        if index is None:
            return
        order = env.read("CUDA_DEVICE_ORDER")
        if order != env.DRIVERS_ORDER and not gpus[index].startswith(_UUIDS):
            self._give_up(f"CUDA_DEVICE_ORDER is {order}, and NVML knows {env.DRIVERS_ORDER} only; unset it")
            return
        try:
            self._nvml = importlib.import_module("pynvml")
            self._nvml.nvmlInit()
            self._handle = self._handle_of(gpus[index])
        except ImportError:
            self._give_up("install it with pip install 'hpcbal[balance]'")
        except Exception as error:
            if not self._is_of_nvml(error):
                raise
            self._give_up(str(error))

    def begin(self, needed: float) -> None:
        """As `DeviceWatch.begin`."""
        self._tensorflow.begin()
        self.needed = needed
        self._most_samples = 0
        self._next_read_s = -1.0

    def read(self, num_samples: int) -> float | None:
        """As `DeviceWatch.read`; more samples than ever have taken memory that no earlier reading shows."""
        now_s = time.monotonic()
        if now_s >= self._next_read_s or num_samples > self._most_samples:
            self._next_read_s = now_s + INTERVAL_S
            self._most_samples = max(num_samples, self._most_samples)
            self._share = self._read()
        return self._share

    def _read(self) -> float | None:
        if self._nvml is None:
            return None
        peak_bytes = self._tensorflow.peak_bytes()
        try:
            memory = self._nvml.nvmlDeviceGetMemoryInfo(self._handle)
            is_alone = (
                peak_bytes is not None
                and len(self._nvml.nvmlDeviceGetComputeRunningProcesses(self._handle)) <= 1
            )
        except Exception as error:
            if not self._is_of_nvml(error):
                raise
            self._give_up(str(error))
            return None
        if peak_bytes is not None:
            self.needed = max(self.needed, _share(peak_bytes, most_of_tensorflow(memory.total)))
        return self.needed if is_alone else _share(memory.used, memory.total)

    def _handle_of(self, gpu: str) -> Any:
        """The device by its number, its UUID, or its place on the PCI bus."""
        if gpu.isdigit():
            return self._nvml.nvmlDeviceGetHandleByIndex(int(gpu))
        if gpu.startswith(_UUIDS):
            return self._nvml.nvmlDeviceGetHandleByUUID(gpu)
        return self._nvml.nvmlDeviceGetHandleByPciBusId(gpu)

    def _is_of_nvml(self, error: Exception) -> bool:
        return self._nvml is not None and isinstance(error, self._nvml.NVMLError)

    def _give_up(self, reason: str) -> None:
        log.warning("the GPU's memory is not measured, NVML cannot be asked: %s", reason)
        self._nvml = None


def most_of_tensorflow(total_bytes: int) -> int:
    """Bytes that TensorFlow takes of a GPU at most: it leaves some to the driver and to libraries.

    How much depends on the generation of the GPU; the most is left out here, so a share is never too small.

    Source: `MinSystemMemory` in TensorFlow's gpu_device.cc: 225 MiB below 2 GiB, else 500 to 1536 MiB.
    """
    reserve_mib = 225 if total_bytes < 2 * 2**30 else 1536
    return max(total_bytes - reserve_mib * 2**20, 1)


def _share(part: int, whole: int) -> float:
    return min(max(float(part) / float(whole), 0.0), 1.0)
