"""What a rank sees of its own resources when it goes to meet its group."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

from hpcbal.telemetry.host.resource_use import ResourceUse


class DeviceWatch(Protocol):
    """How full the memory of this rank's accelerator is, round by round; see `DeviceMemory`."""

    @property
    def needed(self) -> float:
        """Largest share that has been needed since `begin`, or was told to have been needed before."""

    def begin(self, needed: float) -> None:
        """Another round begins: what was needed before is not told any more.

        Args:
            needed: share that this rank has needed in earlier rounds of the same group, see `needed`.
        """

    def read(self, num_samples: int) -> float | None:
        """The newest share in use, 0 to 1; None where it cannot be told.

        Args:
            num_samples: of the batch just computed.
        """


class NoDevice:
    """Nothing is measured, so nothing is needed either."""

    needed = 0.0

    def begin(self, needed: float) -> None:
        """As `DeviceWatch.begin`: there is nothing to forget."""

    def read(self, num_samples: int) -> None:
        """As `DeviceWatch.read`."""


def _nothing() -> ResourceUse:
    return ResourceUse(None, None)


@dataclass(frozen=True, slots=True)
class WorkerWatch:
    """What is measured, and how; by default nothing is.

    Attributes:
        host: CPU and memory, as `ResourceProbe.read`.
        device: memory of the accelerator.
    """

    host: Callable[[], ResourceUse] = field(default=_nothing)
    device: DeviceWatch = field(default_factory=NoDevice)
