"""The record of a simulated job."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from dataclasses import dataclass

from hpcbal.errors import HpcbalError
from hpcbal.paramserver.master.events import Reconfigure
from hpcbal.paramserver.master.messages import TurnDone


@dataclass(frozen=True, slots=True)
class EpochTime:
    """One epoch.

    Attributes:
        epoch: counts up from 1.
        end_s: seconds since the start of the job.
        has_objective: whether the objective was computed at its end, and is part of its time.
    """

    epoch: int
    end_s: float
    has_objective: bool


@dataclass(frozen=True, slots=True)
class TurnTime:
    """One turn: when its updates were applied, whose it was, and what the worker reported."""

    end_s: float
    executor: int
    report: TurnDone


@dataclass(frozen=True, slots=True)
class ChangeTime:
    """One reconfiguration, in seconds since the start of the job."""

    start_s: float
    end_s: float
    change: Reconfigure


@dataclass(frozen=True, slots=True)
class ServingRun:
    """A simulated job.

    Attributes:
        epochs, turns, changes: in order of their ends.
        bytes_in, bytes_out: by rank, from and to other ranks, headers included.
        data_owner, parameter_owner: rank of each block at the end.
    """

    epochs: tuple[EpochTime, ...]
    turns: tuple[TurnTime, ...]
    changes: tuple[ChangeTime, ...]
    bytes_in: Mapping[int, int]
    bytes_out: Mapping[int, int]
    data_owner: tuple[int, ...]
    parameter_owner: tuple[int, ...]

    @property
    def epoch_seconds(self) -> tuple[float, ...]:
        """Seconds of each epoch, the first from the start of the job."""
        ends = [0.0, *(epoch.end_s for epoch in self.epochs)]
        return tuple(after - before for before, after in itertools.pairwise(ends))

    @property
    def steady_epoch_s(self) -> float:
        """Mean seconds of the epochs between the first and the last, which has an objective at its end.

        Raises: HpcbalError: there are fewer than three epochs.
        """
        if len(self.epochs) < 3:
            raise HpcbalError(f"steady_epoch_s: got {len(self.epochs)} epochs, allowed: 3 at least")
        return (self.epochs[-2].end_s - self.epochs[0].end_s) / (len(self.epochs) - 2)
