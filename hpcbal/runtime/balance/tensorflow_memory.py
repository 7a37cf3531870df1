"""The most memory that TensorFlow in this process has needed of its GPU."""

from __future__ import annotations

import logging
import sys
from typing import Any

log = logging.getLogger(__name__)

GPU = "GPU:0"
"""A trainer shows TensorFlow one GPU, its own."""


class TensorFlowMemory:
    """Peaks of the bytes that tensors take, as TensorFlow counts them.

    The peak counts, not the bytes in use: between two steps a batch holds none. What gaps between tensors
    cost is left out. Where TensorFlow was not imported, or has no GPU, there is no peak; where it keeps no
    count, that is logged once.
    """

    def __init__(self) -> None:
        self._gave_up = False

    def begin(self) -> None:
        """Forget the peak so far."""
        tensorflow = self._with_gpu()
        if tensorflow is not None:
            tensorflow.config.experimental.reset_memory_stats(GPU)

    def peak_bytes(self) -> int | None:
        """The most bytes since `begin`; None where TensorFlow does not count them."""
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
            log.warning("TensorFlow does not count the memory that it takes of the GPU: %s", error)
            self._gave_up = True
            return None
        return tensorflow
