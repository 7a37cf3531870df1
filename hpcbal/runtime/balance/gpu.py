"""Measure this rank's GPU: how busy it is, and how full its memory, by NVML and by TensorFlow."""

from __future__ import annotations

import importlib
import logging
import sys
import time
from collections.abc import Callable
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


log = logging.getLogger(__name__)


GPU = "GPU:0"
"""TensorFlow sees only one GPU, the trainer's own."""


class TensorFlowMemory:
    """Peak number of bytes that tensors take, as TensorFlow counts them.

    The peak is used rather than the bytes in use, because a batch holds no memory between two steps. Gaps
    between tensors are not counted. If TensorFlow was not imported or has no GPU, there is no peak; if it
    keeps no count, a warning is logged once.
    """

    def __init__(self) -> None:
        self._gave_up = False

    def begin(self) -> None:
        """Reset the peak."""
        tensorflow = self._with_gpu()
        if tensorflow is not None:
            tensorflow.config.experimental.reset_memory_stats(GPU)

    def peak_bytes(self) -> int | None:
        """Peak bytes since `begin`; None if TensorFlow does not count them."""
        tensorflow = self._with_gpu()
        if tensorflow is None:
            return None
        return int(tensorflow.config.experimental.get_memory_info(GPU)["peak"])

    def _with_gpu(self) -> Any:
        """TensorFlow, if it has a GPU whose memory it counts."""
        tensorflow = sys.modules.get("tensorflow")
        if self._gave_up or tensorflow is None or not tensorflow.config.list_logical_devices("GPU"):
            return None
        try:
            tensorflow.config.experimental.get_memory_info(GPU)
        except ValueError as error:
            log.warning("TensorFlow does not count the GPU memory that it uses: %s", error)
            self._gave_up = True
            return None
        return tensorflow


INTERVAL_S = 0.2


class DeviceMemory:
    """Share of one GPU's memory that is in use by a rank's batches and by others.

    - If this process is alone on the GPU, the share is TensorFlow's own peak since `begin`, relative to what
      TensorFlow may take. It belongs to the network that is training now. NVML reports more: TensorFlow takes
      memory in ever larger pieces and returns none, so NVML's figure includes what profiling and other
      networks once needed.
    - If others use the GPU too, or TensorFlow keeps no count, the share is what NVML reports as used, by any
      process. A policy that gives no more samples to a full GPU then errs on the safe side.
    - Without NVML (GPUs of other vendors), or if the driver refuses, nothing is known. This is logged once;
      `balance.max_samples_per_slot` bounds the shares instead.

    Attributes:
        needed: largest share that TensorFlow has needed since `begin`, or in earlier rounds of the group.

    Args:
        gpu: id of this process's GPU, from `visible_gpus`; None: it has none. Indices and bus ids agree with
            NVML's only with `CUDA_DEVICE_ORDER=PCI_BUS_ID`, which the TensorFlow backend sets.
    """

    def __init__(self, gpu: str | None) -> None:
        self._nvml: Any = None
        self._tensorflow = TensorFlowMemory()
        self._share: float | None = None
        self._next_read_s = -1.0
        self._most_samples = 0
        self.needed = 0.0
        if gpu is None:
            return
        if (problem := wrong_order(gpu)) is not None:
            self._give_up(problem)
            return
        try:
            self._nvml = importlib.import_module("pynvml")
            self._nvml.nvmlInit()
            self._handle = handle_of(self._nvml, gpu)
        except ImportError:
            self._give_up("pynvml is not installed; install it with pip install 'hpcbal[balance]'")
        except Exception as error:
            if not self._is_of_nvml(error):
                raise
            self._give_up(str(error))

    def begin(self, needed: float) -> None:
        """See `DeviceWatch.begin`."""
        self._tensorflow.begin()
        self.needed = needed
        self._most_samples = 0
        self._next_read_s = -1.0

    def read(self, num_samples: int) -> float | None:
        """See `DeviceWatch.read`; a batch larger than all earlier ones causes a new reading."""
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

    def _is_of_nvml(self, error: Exception) -> bool:
        return self._nvml is not None and isinstance(error, self._nvml.NVMLError)

    def _give_up(self, reason: str) -> None:
        log.warning("GPU memory is not measured because NVML cannot be used: %s", reason)
        self._nvml = None


def most_of_tensorflow(total_bytes: int) -> int:
    """Most bytes of a GPU's memory that TensorFlow takes; it reserves some for the driver and libraries.

    The reserve depends on the GPU's generation. The largest is assumed here, so a share is never too small.

    Source: `MinSystemMemory` in TensorFlow's gpu_device.cc: 225 MiB below 2 GiB, else 500 to 1536 MiB.
    """
    reserve_mib = 225 if total_bytes < 2 * 2**30 else 1536
    return max(total_bytes - reserve_mib * 2**20, 1)


def _share(part: int, whole: int) -> float:
    return min(max(float(part) / float(whole), 0.0), 1.0)


USE_INTERVAL_S = 1.0
"""NVML's own period is between a sixth of a second and a second."""


class DeviceUse:
    """The share of the time in which the GPU runs at least one kernel, as NVML tells it between steps.

    NVML is not loaded for this: PyTorch loads it where `nvidia-ml-py` is installed, and so do policies that
    watch the memory of GPUs. Where it is not loaded, there is no GPU, or the driver refuses (as for parts of
    a GPU), nothing is known.

    Args:
        gpu: id of this rank's GPU, from `visible_gpus`; None: it has none.
        clock: monotonic seconds, for tests.
    """

    def __init__(self, gpu: str | None, clock: Callable[[], float] = time.monotonic) -> None:
        self._gpu = gpu
        self._clock = clock
        self._next_s = -1.0
        self._nvml: Any = None
        self._handle: Any = None
        self._samples: list[int] = []

    def look(self) -> None:
        """Take a sample, if the last one is old enough; called between steps."""
        if self._gpu is None or self._clock() < self._next_s:
            return
        self._next_s = self._clock() + USE_INTERVAL_S
        if self._nvml is None and not self._find(self._gpu):
            return
        try:
            self._samples.append(int(self._nvml.nvmlDeviceGetUtilizationRates(self._handle).gpu))
        except self._nvml.NVMLError as error:
            self._give_up(str(error))

    def take(self) -> float | None:
        """Return the mean share since the last call, 0..1; None if there was no sample."""
        samples, self._samples = self._samples, []
        return sum(samples) / len(samples) / 100.0 if samples else None

    def _find(self, gpu: str) -> bool:
        """Return whether the GPU is found in NVML, if that is loaded by now."""
        nvml = sys.modules.get("pynvml")
        if nvml is None:
            return False
        if (problem := wrong_order(gpu)) is not None:
            self._give_up(problem)
            return False
        try:
            nvml.nvmlInit()
            self._handle = handle_of(nvml, gpu)
        except nvml.NVMLError as error:
            self._give_up(str(error))
            return False
        self._nvml = nvml
        return True

    def _give_up(self, reason: str) -> None:
        log.info("how busy the GPU is cannot be measured: %s", reason)
        self._gpu = None


NO_DEVICE = DeviceUse(None)
