"""What a rank sees of its own resources when it goes to meet its group."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from hpcbal.telemetry.resource_use import ResourceUse


def _nothing() -> ResourceUse:
    return ResourceUse(None, None)


def _no_device(num_samples: int) -> float | None:
    return None


def _no_begin(needed: float) -> None:
    return None


def _nothing_needed() -> float:
    return 0.0


@dataclass(frozen=True, slots=True)
class WorkerWatch:
    """What is measured, and how; by default nothing is.

    Attributes:
        host: CPU and memory, as `ResourceProbe.read`.
        device_memory: share of the accelerator's memory in use after a batch of so many samples, as
            `DeviceMemory.read`.
        begin: called when a round begins, as `DeviceMemory.begin`.
        needed_memory: called when it ends, as `DeviceMemory.needed`.
    """

    host: Callable[[], ResourceUse] = field(default=_nothing)
    device_memory: Callable[[int], float | None] = field(default=_no_device)
    begin: Callable[[float], None] = field(default=_no_begin)
    needed_memory: Callable[[], float] = field(default=_nothing_needed)
