"""Where a job is in its data, and what an epoch of training has given."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Position:
    """A point in the data.

    Attributes:
        pass_index: which pass, from 0.
        offset: the next sample of that pass, 0 to the samples of a pass.
    """

    pass_index: int
    offset: int = 0


@dataclass(frozen=True, slots=True)
class EpochRecord:
    """One line of a job's history; `epoch` counts from 1, so it is the number of completed epochs."""

    epoch: int
    pass_index: int
    metrics: Mapping[str, float] = field(default_factory=dict)
    seconds: float = 0.0
