"""The sums of one objective, until those of all blocks are there."""

from __future__ import annotations

from collections.abc import Mapping

from hpcbal.paramserver.machine.messages import Evaluated, Sums, What


class ObjectiveSums:
    """What executors report of one objective, block by block.

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
