"""This machine's accelerators, counted without loading a GPU library."""

from __future__ import annotations

import os
from pathlib import Path


def visible_gpus() -> tuple[str, ...]:
    """Ids of the GPUs that this process may use.

    `CUDA_VISIBLE_DEVICES` or `ROCR_VISIBLE_DEVICES` wins where it is set; otherwise the driver's list counts.
    """
    for variable in ("CUDA_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES"):
        value = os.environ.get(variable)
        if value is not None:
            return tuple(part.strip() for part in value.split(",") if part.strip() not in ("", "-1"))
    driver = Path("/proc/driver/nvidia/gpus")
    return tuple(sorted(path.name for path in driver.iterdir())) if driver.is_dir() else ()


def count_gpus() -> int:
    """Number of GPUs that this process may use."""
    return len(visible_gpus())
