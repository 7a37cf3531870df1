"""Ranks that evaluate exchange what they have found."""

from __future__ import annotations

from typing import Any, Protocol

from numpy.typing import NDArray

from hpcbal.comm.group_comm import Reduction


class Workers(Protocol):
    """Collectives over the ranks that compute; every rank calls the same ones in the same order.

    Attributes:
        rank: of this rank; the first one combines and reports.
        size: number of ranks.
    """

    rank: int
    size: int

    def share(self, value: Any) -> list[Any]:
        """One small picklable value of each rank, on all ranks, in order."""

    def reduce(self, array: NDArray[Any], reduction: Reduction) -> NDArray[Any]:
        """The element-wise sum or maximum over all ranks."""


class OneWorker(Workers):
    """A single process that does everything."""

    rank, size = 0, 1

    def share(self, value: Any) -> list[Any]:
        return [value]

    def reduce(self, array: NDArray[Any], reduction: Reduction) -> NDArray[Any]:
        return array
