"""Where a job is in its data."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Position:
    """A point in the data.

    Attributes:
        pass_index: which pass, from 0.
        offset: the next sample of that pass, 0 to the samples of a pass.
    """

    pass_index: int
    offset: int = 0
