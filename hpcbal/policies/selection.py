"""The positions of a pass that each rank of a trainer group takes in a step."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from hpcbal.errors import PolicyError

Positions = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True, eq=False)
class Selection:
    """The positions of a pass that one rank takes in one step: a run of neighbours, or any others.

    Attributes:
        start, stop: all positions are in start..stop-1; equal if there are none.
        picked: the positions in increasing order, int64, shape (n,); None: all from start to stop-1.

    Raises:
        PolicyError: the positions do not increase, or one is out of range.
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
        """A selection of these positions, in increasing order; neighbours are stored as a run."""
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
        """The places of its positions, counted from `start`: a slice, or indices."""
        if self.picked is None:
            return slice(max(self.start, start) - start, max(min(self.stop, stop), start) - start)
        first, last = np.searchsorted(self.picked, (start, stop))
        return self.picked[first:last] - start

    def __len__(self) -> int:
        return self.stop - self.start if self.picked is None else len(self.picked)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Selection) and np.array_equal(self.positions, other.positions)

    __hash__ = None  # type: ignore[assignment]


@dataclass(frozen=True, slots=True)
class StepShares:
    """The assignment of one step: every position of the step goes to exactly one rank.

    Attributes:
        start: first position of the step.
        counts: number of positions of each rank.
        selections: positions of each rank; None: neighbours in rank order.
        picked: the positions of the step in increasing order, int64, shape (n,); None: all from `start` on.

    Raises:
        PolicyError: a position goes to no rank or to several, or does not belong to the step.
    """

    start: int
    counts: tuple[int, ...]
    selections: tuple[Selection, ...] | None = None
    picked: Positions | None = field(default=None, compare=False)

    def __post_init__(self) -> None:
        if self.selections is not None and not self._is_exact(self.selections):
            raise PolicyError(
                f"shares of a step: got {[own.positions.tolist() for own in self.selections]} by rank for "
                f"{list(self.counts)} positions from {self.start} on; assign each of them exactly once"
            )

    @classmethod
    def neighbours(cls, start: int, counts: Sequence[int]) -> StepShares:
        """Each rank takes its count of neighbours, in rank order."""
        return cls(start, tuple(counts))

    @classmethod
    def of(cls, start: int, selections: Sequence[Selection]) -> StepShares:
        """Each rank takes its selection; together they are a run from `start` on."""
        return cls(start, tuple(map(len, selections)), tuple(selections))

    @classmethod
    def dealt(
        cls,
        start: int,
        rank_of: Sequence[int] | Positions,
        num_ranks: int,
        picked: Positions | None = None,
    ) -> StepShares:
        """Each position goes to the given rank.

        Args:
            start: of the step.
            rank_of: rank of each position of the step, 0..num_ranks-1, shape (num_positions,).
            num_ranks: >= 1.
            picked: see the attribute.

        Raises:
            PolicyError: a rank is out of range.
        """
        ranks = np.asarray(rank_of, np.int64)
        if len(ranks) and not 0 <= int(ranks.min()) <= int(ranks.max()) < num_ranks:
            raise PolicyError(
                f"shares of a step: got ranks {set(ranks.tolist())}, allowed: 0..{num_ranks - 1}"
            )
        order = np.argsort(ranks, kind="stable")
        positions = start + order if picked is None else picked[order]
        ends = np.cumsum(np.bincount(ranks, minlength=num_ranks)).tolist()
        each = tuple(Selection.of(positions[first:end]) for first, end in pairwise([0, *ends]))
        return cls(start, tuple(map(len, each)), each, picked)

    def at(self, own: Selection) -> StepShares:
        """The same shares of positions that may have gaps.

        Args:
            own: the positions, as many as this step has.
        """
        if own.picked is None:
            return self
        assert self.selections is None, "a step is dealt where its positions are known"
        return replace(self, start=own.start, picked=own.picked)

    @property
    def stop(self) -> int:
        """The position after the last one."""
        if self.picked is not None and len(self.picked):
            return int(self.picked[-1]) + 1
        return self.start + sum(self.counts)

    @property
    def positions(self) -> Positions:
        """The positions of the step, int64, shape (n,)."""
        return np.arange(self.start, self.start + sum(self.counts)) if self.picked is None else self.picked

    def of_rank(self, rank: int) -> Selection:
        """The positions of one rank."""
        if self.selections is not None:
            return self.selections[rank]
        first = sum(self.counts[:rank])
        if self.picked is not None:
            return Selection.of(self.picked[first : first + self.counts[rank]])
        return Selection(self.start + first, self.start + first + self.counts[rank])

    def _is_exact(self, selections: Sequence[Selection]) -> bool:
        if tuple(map(len, selections)) != self.counts:
            return False
        positions = np.sort(np.concatenate([own.positions for own in selections]))
        return np.array_equal(positions, self.positions)
