"""How far the data blocks are, how far turns may start, and the sums of an objective over all blocks."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from hpcbal.paramserver.master.messages import Evaluated, Sums, What


@dataclass(frozen=True, slots=True)
class BoundedStaleness:
    """The bounds on workers' epochs and steps: staleness, and when objectives are due.

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


class ObjectiveSums:
    """Sums of one objective, as executors report them block by block.

    Args:
        epoch: after which it is evaluated.
        num_blocks: of each kind.
    """

    def __init__(self, epoch: int, num_blocks: Mapping[What, int]) -> None:
        self.epoch = epoch
        self._num_blocks = num_blocks
        self._sums: dict[What, dict[int, Sums]] = {what: {} for what in num_blocks}

    def add(self, report: Evaluated) -> None:
        """Take what an executor reports of its blocks.

        Raises:
            ValueError: it is of another epoch, or one of its blocks has been reported before.
        """
        if report.epoch != self.epoch:
            raise ValueError(f"got sums of epoch {report.epoch}, but {self.epoch} is evaluated")
        found: dict[What, Mapping[int, Sums]] = {"data": report.data, "parameters": report.parameters}
        for what, sums in found.items():
            if again := self._sums[what].keys() & sums.keys():
                raise ValueError(f"{what} block {min(again)} was evaluated twice after epoch {self.epoch}")
            self._sums[what].update(sums)

    @property
    def is_complete(self) -> bool:
        """Whether all blocks have been reported."""
        return all(len(self._sums[what]) == count for what, count in self._num_blocks.items())

    def total(self) -> dict[str, float]:
        """The sums over all blocks, in order of blocks, so that they do not depend on who owns which."""
        total: dict[str, float] = {}
        for what, count in self._num_blocks.items():
            for block in range(count):
                for name, value in self._sums[what][block].items():
                    total[name] = total.get(name, 0.0) + value
        return total
