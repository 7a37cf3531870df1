"""Where a consumer of the shared stream of samples stands."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Position:
    """A point in the shared stream: sample `offset` (0..samples per pass) of pass `pass_index`."""

    pass_index: int
    offset: int = 0
