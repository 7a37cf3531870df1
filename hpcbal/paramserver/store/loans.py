"""Blocks that are lent: their values are being sent, so they must not change."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

from hpcbal.paramserver.store.numbers import Bundle

T = TypeVar("T")


class Loans:
    """Which blocks of one rank are lent, and how often."""

    def __init__(self) -> None:
        self._lent: dict[int, int] = {}
        self._bundles: dict[Bundle, int] = {}

    def __bool__(self) -> bool:
        """Whether any block is lent."""
        return bool(self._lent or self._bundles)

    def lend(self, blocks: Sequence[int]) -> None:
        """Lend blocks once more."""
        for block in blocks:
            self._lent[block] = self._lent.get(block, 0) + 1

    def lend_bundle(self, bundle: Bundle) -> None:
        """Lend the blocks of a bundle once more."""
        self._bundles[bundle] = self._bundles.get(bundle, 0) + 1

    def give_back(self, block: int) -> bool:
        """A block is lent once less; False if it is not."""
        return _decrement(self._lent, block)

    def give_back_bundle(self, bundle: Bundle) -> bool:
        """The blocks of a bundle are lent once less; False if they are not."""
        return _decrement(self._bundles, bundle)

    def are_free(self, blocks: Sequence[int]) -> bool:
        """Whether none of these blocks is lent."""
        if self._lent and not self._lent.keys().isdisjoint(blocks):
            return False
        return all(set(blocks).isdisjoint(bundle.blocks) for bundle in self._bundles)


def _decrement(counts: dict[T, int], key: T) -> bool:
    left = counts.get(key, 0) - 1
    if left > 0:
        counts[key] = left
    elif left == 0:
        del counts[key]
    return left >= 0
