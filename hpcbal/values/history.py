"""The result of an epoch of training."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class EpochRecord:
    """One line of a job's history; `epoch` counts from 1, so it is the number of completed epochs."""

    epoch: int
    pass_index: int
    metrics: Mapping[str, float] = field(default_factory=dict)
    seconds: float = 0.0
