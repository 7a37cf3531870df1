"""Who has pulled blocks that are always pulled together: counted once for all of them."""

from __future__ import annotations

from hpcbal.paramserver.engine.held_block import BEFORE_ALL_STEPS

Blocks = tuple[int, ...]


class PulledTogether:
    """Counts the data blocks whose turns of a step have pulled all these blocks at once."""

    def __init__(self) -> None:
        self._pulled: dict[Blocks, tuple[int, int]] = {}  # step, and data blocks

    def note(self, blocks: Blocks, step: int, share: int) -> None:
        """Turns of so many data blocks of a step have pulled all these blocks."""
        before, count = self._pulled.get(blocks, (BEFORE_ALL_STEPS, 0))
        self._pulled[blocks] = step, share + (count if before == step else 0)

    def have_all(self, blocks: Blocks, step: int, num_data_blocks: int) -> bool:
        """Whether the turns of all data blocks of a step have pulled all these blocks."""
        return self._pulled.get(blocks) == (step, num_data_blocks)

    def forget(self, block: int) -> list[tuple[Blocks, int, int]]:
        """Count what was pulled together with a block no more; returns blocks, step, and data blocks."""
        found = [(blocks, *counts) for blocks, counts in self._pulled.items() if block in blocks]
        for blocks, _, _ in found:
            del self._pulled[blocks]
        return found
