"""Sample how busy this rank's GPU is, where NVML is loaded already."""

from __future__ import annotations

import logging
import sys
import time
from collections.abc import Callable
from typing import Any

from hpcbal.telemetry.resources.nvml import handle_of, wrong_order

log = logging.getLogger(__name__)

INTERVAL_S = 1.0
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
        self._next_s = self._clock() + INTERVAL_S
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
