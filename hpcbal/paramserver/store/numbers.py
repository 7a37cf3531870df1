"""The pushes that are in the values of blocks: by worker and block, the number of the last one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence


class Bundle:
    """Blocks that a worker pulls and pushes at once again and again, so that deciding takes no loop.

    Only hosts change `number` and `is_live`.

    Attributes:
        blocks: of the bundle.
        number: if it is live, of the worker's last push to each block.
        is_live: whether `number` stands for the numbers of its blocks.
    """

    __slots__ = ("blocks", "is_live", "number", "worker")

    def __init__(self, worker: int, blocks: tuple[int, ...]) -> None:
        self.worker, self.blocks = worker, blocks
        self.number = 0
        self.is_live = False


class _OfWorker(dict[int, int]):
    """By block; 0 at first."""

    __slots__ = ()

    def __missing__(self, block: int) -> int:
        return 0


class PushNumbers:
    """Numbers of the last pushes to the blocks of one rank."""

    def __init__(self) -> None:
        self._of: dict[int, _OfWorker] = {}
        self._live: dict[int, list[Bundle]] = {}  # by worker; no two have a block in common

    def of(self, worker: int, blocks: Sequence[int]) -> dict[int, int]:
        """The numbers of a worker, to be read and changed for these blocks until `revive`."""
        if worker in self._live:
            self._settle(worker, blocks)
        found = self._of.get(worker)
        if found is None:
            found = self._of[worker] = _OfWorker()
        return found

    def at(self, block: int) -> Mapping[int, int]:
        """By worker, the number of its last push to a block."""
        for worker in list(self._live):
            self._settle(worker, [block])
        return {worker: numbers[block] for worker, numbers in self._of.items() if block in numbers}

    def pop(self, block: int) -> Mapping[int, int]:
        """Forget a block; returns what `at` does."""
        found = self.at(block)
        for worker in found:
            del self._of[worker][block]
        return found

    def revive(self, bundle: Bundle) -> bool:
        """Let the number of a bundle stand for those of its blocks, if they are equal."""
        numbers = self.of(bundle.worker, bundle.blocks)
        found = set(map(numbers.__getitem__, bundle.blocks))
        if len(found) != 1:
            return False
        bundle.number, bundle.is_live = found.pop(), True
        self._live.setdefault(bundle.worker, []).append(bundle)
        return True

    def _settle(self, worker: int, blocks: Sequence[int]) -> None:
        """Write the numbers of bundles that have any of these blocks where they belong."""
        left = []
        for bundle in self._live.pop(worker):
            if set(bundle.blocks).isdisjoint(blocks):
                left.append(bundle)
                continue
            self._of[worker].update(dict.fromkeys(bundle.blocks, bundle.number))
            bundle.is_live = False
        if left:
            self._live[worker] = left
