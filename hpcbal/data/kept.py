"""Where samples are kept as they are before the first random operation; `dataplane` has the caches."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray


class KeptSamples(Protocol):
    """Where samples and labels can be kept before the first random operation, by id."""

    def get(self, sample_id: int) -> tuple[NDArray[Any], NDArray[Any]] | None:
        """Return a sample and its label, which cannot be written to; None if they are not there."""

    def copy(self, ids: NDArray[np.int64], samples: NDArray[Any], labels: NDArray[Any]) -> bool:
        """Copy samples and labels into arrays, if all are there; return whether they are."""

    def put(self, sample_id: int, sample: NDArray[Any], label: NDArray[Any]) -> None:
        """Keep copies of a sample and its label, if there is room for them and they are not there yet."""

    def ask(self, ids: Iterable[int]) -> None:
        """Say which samples this process needs next: those of other nodes may begin to come."""

    def is_coming(self, sample_id: int) -> bool:
        """Whether a sample may still come from another node."""

    def settle(self) -> None:
        """Say that nothing that was asked for is needed any more."""

    def claim(self, sample_id: int) -> bool:
        """Say that this process makes a sample that is not there; False if another one is making it now."""

    def is_claimed(self, sample_id: int) -> bool:
        """Whether some process is making a sample now."""

    def give_up(self, sample_id: int) -> None:
        """Take back the claim of a sample that cannot be made."""

    @property
    def num_hits(self) -> int:
        """Samples that this process has found, so far."""

    @property
    def num_fetched(self) -> int:
        """How many of these came from other nodes."""

    @property
    def is_full(self) -> bool:
        """Whether this process adds no more samples."""

    def is_missing(self, sample_id: int) -> bool:
        """Whether a sample is neither there nor being made."""

    def take_warning(self) -> str:
        """Return what people should know about it, once; empty if there is nothing."""
