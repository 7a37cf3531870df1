"""Which positions of a pass each rank of a trainer group takes in a step."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate, pairwise

import numpy as np
import numpy.typing as npt

from hpcbal.errors import PolicyError

Positions = npt.NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Selection:
    """Positions of a pass that one rank takes in one step: a run of neighbours, or any others.

    Attributes:
        start, stop: all positions are in start..stop-1; equal where there are none.
        picked: the positions in increasing order, int64, shape (n,); None: all from start to stop-1.

    Raises:
        PolicyError: the positions do not increase, or lie outside.
    """

    start: int
    stop: int
    picked: Positions | None = None

    def __post_init__(self) -> None:
        picked = self.picked
        is_right = self.start <= self.stop
        if picked is not None and len(picked):
            rises = bool((picked[1:] > picked[:-1]).all())
            is_right = rises and self.start <= int(picked[0]) and int(picked[-1]) < self.stop
        if not is_right:
            raise PolicyError(
                f"selection of positions: got {picked} in {self.start}..{self.stop}, allowed: positions that "
                "increase, each from start to stop - 1"
            )

    @classmethod
    def of(cls, positions: Sequence[int] | Positions) -> Selection:
        """These positions, in increasing order; neighbours are kept as a run."""
        picked = np.asarray(positions, np.int64)
        if not len(picked):
            return cls(0, 0)
        start, stop = int(picked[0]), int(picked[-1]) + 1
        return cls(start, stop, None if stop - start == len(picked) else picked)

    @property
    def positions(self) -> Positions:
        """The positions, int64, shape (n,)."""
        return np.arange(self.start, self.stop) if self.picked is None else self.picked

    def within(self, start: int, stop: int) -> slice | Positions:
        """Where in start..stop-1 its positions are, counted from `start`: a slice, or indices."""
        if self.picked is None:
            return slice(max(self.start, start) - start, max(min(self.stop, stop), start) - start)
        first, last = np.searchsorted(self.picked, (start, stop))
        return self.picked[first:last] - start

    def __len__(self) -> int:
        return self.stop - self.start if self.picked is None else len(self.picked)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Selection) and np.array_equal(self.positions, other.positions)

    __hash__ = None  # type: ignore[assignment]


@dataclass(frozen=True)
class StepShares:
    """How one step is dealt out: every position of start..stop-1 goes to exactly one rank.

    Attributes:
        start, stop: positions of the whole step.
        by_rank: what each rank takes.

    Raises:
        PolicyError: a position of the step is given to no rank or to several, or one is not of the step.
    """

    start: int
    stop: int
    by_rank: tuple[Selection, ...]

    def __post_init__(self) -> None:
        if not self._is_exact():
            raise PolicyError(
                f"shares of a step: got {list(self.counts)} positions of {self.start}..{self.stop} by rank; "
                "deal out each of them exactly once"
            )

    def _is_exact(self) -> bool:
        if sum(self.counts) != self.stop - self.start:
            return False
        taken = sorted((own for own in self.by_rank if len(own)), key=lambda own: own.start)
        if all(own.picked is None for own in taken):
            ends = [self.start, *(own.stop for own in taken)]
            return [own.start for own in taken] == ends[:-1] and ends[-1] == self.stop
        positions = np.sort(np.concatenate([own.positions for own in taken]))
        return np.array_equal(positions, np.arange(self.start, self.stop))

    @classmethod
    def neighbours(cls, start: int, counts: Sequence[int]) -> StepShares:
        """Each rank takes so many positions, the first rank the first ones."""
        ends = list(accumulate(counts, initial=start))
        by_rank = tuple(Selection(first, last) for first, last in pairwise(ends))
        return cls(start, ends[-1], by_rank)

    @classmethod
    def dealt(cls, start: int, rank_of: Sequence[int] | Positions, num_ranks: int) -> StepShares:
        """Each position goes to the rank that is given for it.

        Args:
            start: of the step.
            rank_of: rank of each position from `start` on, 0..num_ranks-1, shape (num_positions,).

        Raises:
            PolicyError: there is no such rank.
        """
        ranks = np.asarray(rank_of, np.int64)
        if len(ranks) and not 0 <= int(ranks.min()) <= int(ranks.max()) < num_ranks:
            raise PolicyError(
                f"shares of a step: got ranks {set(ranks.tolist())}, allowed: 0..{num_ranks - 1}"
            )
        by_rank = tuple(Selection.of(np.flatnonzero(ranks == rank) + start) for rank in range(num_ranks))
        return cls(start, start + len(ranks), by_rank)

    @cached_property
    def counts(self) -> tuple[int, ...]:
        """Positions of each rank."""
        return tuple(map(len, self.by_rank))
