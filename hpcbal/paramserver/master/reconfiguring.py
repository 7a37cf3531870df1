"""The moves of one reconfiguration: which may start, which are under way, which are over."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from hpcbal.paramserver.master.events import BlockMove, Reconfigure
from hpcbal.paramserver.master.messages import What


class Reconfiguration:
    """Performs the moves in the order of their dependencies, side by side where there are none.

    Args:
        request: what to do.
        owner: rank that owns each block, by sort of block.

    Raises:
        ValueError: if a move takes blocks from a rank that does not own them, or is in no order.
    """

    def __init__(self, request: Reconfigure, owner: Mapping[What, Sequence[int]]) -> None:
        self._request = request
        self._left: dict[int, set[int]] = {}  # of each move under way, blocks that have not arrived
        self._waiting = dict(enumerate(request.moves))
        self._arrived: dict[int, list[int]] = {number: [] for number in self._waiting}  # blocks of each move
        now = {what: list(ranks) for what, ranks in owner.items()}
        for number, move in enumerate(request.moves):
            if any(before >= number for before in move.after):
                raise ValueError(f"move {number} waits for a later one: {move}")
            wrong = [block for block in move.blocks if now[move.what][block] != move.source]
            if wrong or not move.blocks or move.source == move.destination:
                raise ValueError(f"move {number} is not valid: {move}; not owned by its source: {wrong}")
            for block in move.blocks:
                now[move.what][block] = move.destination

    @property
    def is_over(self) -> bool:
        return not self._waiting and not self._left

    @property
    def performed(self) -> Reconfigure:
        """The request with the blocks that have arrived, in no order."""
        moves = [
            replace(move, blocks=tuple(self._arrived[number]), after=())
            for number, move in enumerate(self._request.moves)
            if self._arrived[number]
        ]
        return replace(self._request, moves=tuple(moves))

    def start_ready(self) -> list[BlockMove]:
        """The moves that wait for none any more; they are under way from now on."""
        open_ = self._waiting.keys() | self._left.keys()
        ready = [number for number, move in self._waiting.items() if open_.isdisjoint(move.after)]
        moves = [self._waiting.pop(number) for number in ready]
        self._left.update({number: set(move.blocks) for number, move in zip(ready, moves, strict=True)})
        return moves

    def arrived(self, what: What, blocks: Sequence[int], destination: int) -> None:
        """Note that blocks have arrived.

        Raises:
            ValueError: if they are on no move there.
        """
        for block in blocks:
            number = next(
                (
                    number
                    for number, left in self._left.items()
                    if block in left
                    and self._request.moves[number].what == what
                    and self._request.moves[number].destination == destination
                ),
                None,
            )
            if number is None:
                raise ValueError(f"{what} block {block} arrived at {destination}, but is on no move there")
            self._left[number].discard(block)
            self._arrived[number].append(block)
            if not self._left[number]:
                del self._left[number]
