"""Measure the most GPU memory that TensorFlow in this process has needed."""

from __future__ import annotations

import logging
import sys
from typing import Any

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
