"""One start of a simulated job on machines, as those see it that place jobs and watch them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from hpcbal.paramserver.sharing.profiling import IterationMeter
from hpcbal.policies.grouping import JobLoad


class Start(Protocol):
    """A job on its machines, until it is done or leaves them.

    Attributes:
        name: of the job.
        machines: ranks.
        meter: measures its iterations.
        ended_s: times at which its iterations ended.
        began_s: when it was placed.
        saving_s: that a stop takes here.
        is_done: whether nothing is left of the job.
    """

    meter: IterationMeter
    machines: tuple[int, ...]
    ended_s: list[float]
    began_s: float

    @property
    def name(self) -> str: ...

    @property
    def saving_s(self) -> float: ...

    @property
    def is_done(self) -> bool: ...

    def load(self) -> JobLoad:
        """What has been measured, at least one iteration."""

    def stop(self) -> None:
        """Leave after the iteration that goes on."""


class Hears(Protocol):
    """The scheduler's side of the simulation."""

    def loaded(self, run: Start) -> None:
        """A job has what it needs on its machines."""

    def iterated(self, run: Start, is_measured: bool) -> None:
        """A job has ended an iteration."""

    def left(self, run: Start) -> None:
        """A job has left its machines."""


class Machines(Protocol):
    """All machines of a run, and the jobs on them."""

    def start(self, job: str, ranks: tuple[int, ...]) -> Start:
        """Start a job, or let it go on from its last checkpoint. What follows happens later."""

    def used_s(self) -> tuple[Mapping[int, float], Mapping[int, float]]:
        """By rank, for how long cores and link have been used until now."""
