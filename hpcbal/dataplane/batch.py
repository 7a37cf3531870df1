"""What a trainer reads from the stream: the valid samples of a range of positions."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, slots=True)
class Batch:
    """Samples in the order of their positions, without broken ones.

    Attributes:
        ids: int64, shape (n,).
        x: samples, shape (n, *sample shape); a list of n arrays if the spec's shape is not static. They may
            lie in the ring, and are read-only then (`StreamReader.read_selection`).
        y: labels, shape (n, *label shape).
        work: the work of the batch, in samples of mean size; by default its number of samples.
        padding_limit: how many times as long as the longest sample padding may make all samples, >= 1; inf:
            no limit.
    """

    ids: NDArray[np.int64]
    x: NDArray[Any] | list[NDArray[Any]]
    y: NDArray[Any]
    work: float = -1.0
    padding_limit: float = math.inf

    def __post_init__(self) -> None:
        if self.work < 0.0:
            object.__setattr__(self, "work", float(len(self.ids)))

    def __len__(self) -> int:
        return len(self.ids)
