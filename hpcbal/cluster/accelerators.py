"""This machine's accelerators, and those that the batch system gave, without loading a GPU library."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

_VISIBLE = ("CUDA_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES")
# LSF and jsrun set CUDA_VISIBLE_DEVICES only.
_GRANTED = ("SLURM_STEP_GPUS", "SLURM_JOB_GPUS", "SLURM_GPUS_ON_NODE", *_VISIBLE)
_NO_DEVICE = ("", "-1", "NoDevFiles")  # the last one is from Slurm, for jobs without GPUs


def visible_gpus(device: str = "auto") -> tuple[str, ...]:
    """Ids of the GPUs that this process may use.

    `CUDA_VISIBLE_DEVICES` or `ROCR_VISIBLE_DEVICES` wins where it is set; otherwise the driver's list counts.

    Args:
        device: `slots.device`; there are none if it is `cpu`.
    """
    if device == "cpu":
        return ()
    for variable in _VISIBLE:
        value = os.environ.get(variable)
        if value is not None:
            return _ids(value)
    driver = Path("/proc/driver/nvidia/gpus")
    return tuple(sorted(path.name for path in driver.iterdir())) if driver.is_dir() else ()


def granted_gpus(environ: Mapping[str, str]) -> str | None:
    """The variable by which the batch system or the user gave GPUs, such as `SLURM_JOB_GPUS=0,1`.

    Returns: None if no variable names a GPU.
    """
    for variable in _GRANTED:
        value = environ.get(variable, "")
        if _ids(value) and not (variable == "SLURM_GPUS_ON_NODE" and value == "0"):
            return f"{variable}={value}"
    return None


def _ids(value: str) -> tuple[str, ...]:
    return tuple(part.strip() for part in value.split(",") if part.strip() not in _NO_DEVICE)
