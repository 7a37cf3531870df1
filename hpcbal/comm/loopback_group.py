"""A trainer group's small collectives between threads of one process."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hpcbal.comm.group_comm import GroupComm, Reduction
from hpcbal.comm.loopback_pieces import LoopbackPieces
from hpcbal.comm.meeting import Meeting

_OPERATIONS: dict[Reduction, np.ufunc] = {"sum": np.add, "min": np.minimum, "max": np.maximum}


class LoopbackGroupComm(GroupComm):
    """One rank's end of a group whose ranks are threads, or of a group of one.

    Args:
        rank: rank in the group.
        meeting: shared by the group's ranks and used for nothing else.
    """

    def __init__(self, rank: int, meeting: Meeting) -> None:
        self._rank = rank
        self._meeting = meeting

    @classmethod
    def alone(cls) -> LoopbackGroupComm:
        """Make a group of one rank; no method ever waits."""
        return cls(0, Meeting(1))

    @property
    def rank(self) -> int:
        return self._rank

    @property
    def size(self) -> int:
        return self._meeting.num_ranks

    def all_gather(self, mine: NDArray[Any], poll: Callable[[], None] | None = None) -> NDArray[Any]:
        return np.stack(self._meeting.exchange(self._rank, np.array(mine), poll))

    def all_reduce(self, mine: NDArray[Any], reduction: Reduction) -> NDArray[Any]:
        everyone = self._meeting.exchange(self._rank, np.array(mine))
        return np.asarray(_OPERATIONS[reduction].reduce(np.stack(everyone), axis=0), mine.dtype)

    def broadcast(self, array: NDArray[Any]) -> None:
        array[...] = self._meeting.exchange(self._rank, array.copy() if self._rank == 0 else None)[0]

    def open_pieces(self) -> LoopbackPieces:
        return LoopbackPieces(self, self._meeting.exchange(self._rank, {} if self._rank == 0 else None)[0])
