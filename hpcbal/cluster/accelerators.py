"""Accelerators of this machine, counted without loading a GPU library."""

from __future__ import annotations

import os
from pathlib import Path


def count_gpus() -> int:
    """GPUs that this process may use, without loading a GPU library.

    `CUDA_VISIBLE_DEVICES` or `ROCR_VISIBLE_DEVICES` wins where it is set; else the driver's own list counts.
    """
    for variable in ("CUDA_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES"):
        value = os.environ.get(variable)
        if value is not None:
            return len([part for part in value.split(",") if part.strip() not in ("", "-1")])
    driver = Path("/proc/driver/nvidia/gpus")
    return len(list(driver.iterdir())) if driver.is_dir() else 0
