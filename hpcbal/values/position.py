"""Where a job stands in its data."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Position:
    """A point in the data: sample `offset` (0..samples per pass) of pass `pass_index`."""

    pass_index: int
    offset: int = 0
