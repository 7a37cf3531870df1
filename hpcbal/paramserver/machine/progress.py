"""How far the data blocks are, and how far turns may start."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Pace:
    """What ties workers together.

    Attributes:
        steps_per_epoch: R, >= 1; 1 with `async`, where the number of a step is that of the epoch.
        staleness: steps that a worker may be ahead of the slowest block; None: `async`, up to one epoch.
        max_epochs: >= 1.
        objective_every: epochs from one objective to the next, >= 1; there is one after the last epoch.
    """

    steps_per_epoch: int
    staleness: int | None
    max_epochs: int
    objective_every: int = 1

    def next_objective(self, epoch: int) -> int:
        """The first number of epochs above `epoch` after which an objective is due."""
        return min(self.max_epochs, (epoch // self.objective_every + 1) * self.objective_every)

    def limit(self, done: int, measured: int) -> int:
        """Turns of steps below this may start.

        Args:
            done: steps that every data block has done.
            measured: epochs at the last objective.

        In `sync` and `stale`, no step starts before the objective of the epochs before it is computed: it
        is that of these epochs alone. `async` workers do not wait for it.
        """
        if self.staleness is None:
            return min(done + 2, self.max_epochs)
        horizon = max(self.next_objective(measured), measured) * self.steps_per_epoch
        return min(done + 1 + self.staleness, horizon)


class Cursors:
    """The step at which each data block goes on.

    Args:
        num_blocks: >= 1.
    """

    def __init__(self, num_blocks: int) -> None:
        self._cursors = [0] * num_blocks
        self._blocks_at: dict[int, int] = {0: num_blocks}
        self._done = 0

    @property
    def done(self) -> int:
        """Steps that every block has done."""
        return self._done

    def of(self, block: int) -> int:
        """The step at which a block goes on."""
        return self._cursors[block]

    def set(self, cursors: Mapping[int, int]) -> None:
        """Set the cursors of some blocks, as their owners report them."""
        for block, cursor in cursors.items():
            self._move(block, cursor)
        self._done = min(self._blocks_at)

    def advance(self, block: int, step: int) -> None:
        """Note that a block has done a step.

        Raises:
            ValueError: if it was another block's turn: a step was left out or done twice.
        """
        if self._cursors[block] != step:
            raise ValueError(f"data block {block} did step {step}, but goes on at {self._cursors[block]}")
        self._move(block, step + 1)
        while self._done not in self._blocks_at:
            self._done += 1

    def _move(self, block: int, cursor: int) -> None:
        before = self._cursors[block]
        self._blocks_at[before] -= 1
        if not self._blocks_at[before]:
            del self._blocks_at[before]
        self._cursors[block] = cursor
        self._blocks_at[cursor] = self._blocks_at.get(cursor, 0) + 1
