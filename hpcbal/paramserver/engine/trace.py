"""Tell a recorder what an executor does, and when."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext


class Trace:
    """A recorder of what an executor does. This one ignores it.

    Times are those of `time.monotonic`.
    """

    def turn(self, epoch: int, pull_began_s: float, compute_began_s: float, compute_ended_s: float) -> None:
        """A turn has been taken, and its updates are being sent.

        Args:
            epoch: of its samples, from 0.
            pull_began_s: when the worker asked for parameters.
            compute_began_s: when it had them, and began to compute.
            compute_ended_s: when it had its updates.
        """

    def during(self, kind: str) -> AbstractContextManager[None]:
        """While the executor does something that is not part of a turn, such as `load`."""
        return nullcontext()
