"""Which answers lend values, and which are sent as copies so that nothing waits for slow receivers.

A block that is lent is not changed until its answer has been taken. In `sync` this costs little: the pushes
of a step come after its pulls. Without a barrier, a push meets blocks that are lent to other workers, and
waits for the slowest of them; what follows behind it waits, too. A copy frees the block at once. It costs
memory and the time of copying, so only workers that take their answers slowly get copies.
"""

from __future__ import annotations

SLOW_BYTES_PER_S = 500e6
"""Copying is about twenty times as fast, so it adds little to an answer that takes longer than this."""

UNNOTICED_S = 1e-3
"""Beside the bytes: what a rank may take to notice an answer."""


class Lending:
    """What a server knows of how its workers take answers.

    Args:
        may_copy: whether answers may be copied at all; False where steps have a barrier.
    """

    def __init__(self, may_copy: bool) -> None:
        self.may_copy = may_copy
        self._slow: set[int] = set()

    def copies(self, worker: int) -> bool:
        """Whether the next answer to a worker is to be a copy, if there is memory for it."""
        return worker in self._slow

    def taken(self, worker: int, num_bytes: int, seconds: float) -> None:
        """A worker has taken an answer, lent or copied.

        Args:
            num_bytes: of its values, >= 0.
            seconds: from when it was sent until its values were no longer read, >= 0.
        """
        if self.may_copy and seconds > UNNOTICED_S + num_bytes / SLOW_BYTES_PER_S:
            self._slow.add(worker)
        else:
            self._slow.discard(worker)
