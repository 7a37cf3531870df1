"""Measure a rank's own resources for its report to the group."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

from hpcbal.telemetry.host.resource_use import ResourceUse


class DeviceWatch(Protocol):
    """Measures how full the memory of this rank's accelerator is, per round; see `DeviceMemory`."""

    @property
    def needed(self) -> float:
        """Largest share needed since `begin`, or in earlier rounds as passed to `begin`."""

    def begin(self, needed: float) -> None:
        """Begin a new round: discard what was needed before.

        Args:
            needed: share that this rank needed in earlier rounds of the same group, see `needed`.
        """

    def read(self, num_samples: int) -> float | None:
        """The latest share in use, 0 to 1; None if it cannot be measured.

        Args:
            num_samples: number of samples in the batch just computed.
        """


class NoDevice(DeviceWatch):
    """Measures nothing, so nothing is ever needed."""

    needed = 0.0

    def begin(self, needed: float) -> None:
        """Do nothing: nothing was measured."""

    def read(self, num_samples: int) -> None:
        """Measure nothing."""


def _nothing() -> ResourceUse:
    return ResourceUse(None, None)


@dataclass(frozen=True, slots=True)
class WorkerWatch:
    """What a rank measures of its resources; by default nothing.

    Attributes:
        host: measures CPU and memory, like `ResourceProbe.read`.
        device: measures the accelerator's memory.
    """

    host: Callable[[], ResourceUse] = field(default=_nothing)
    device: DeviceWatch = field(default_factory=NoDevice)
