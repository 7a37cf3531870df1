"""Tell a recorder what an executor does, and when."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext


class Tracer:
    """A recorder of what an executor does. This one ignores it.

    Times are those of `time.monotonic`.

    Attributes:
        records_messages: whether `message` and `served` are to be called.
    """

    records_messages = False

    def turn(
        self,
        epoch: int,
        pull_began_s: float,
        compute_began_s: float,
        compute_ended_s: float,
        num_samples: int = 0,
    ) -> None:
        """A turn has been taken, and its updates are being sent.

        Args:
            epoch: of its samples, from 0.
            pull_began_s: when the worker asked for parameters.
            compute_began_s: when it had them, and began to compute.
            compute_ended_s: when it had its updates.
            num_samples: of the turn.
        """

    def message(self, kind: int, request: int, num_bytes: int, *, is_sent: bool) -> None:
        """A frame is sent to another rank, or its header has come from one.

        Args:
            kind: a `FrameKind` of `engine.wire`.
            request: of the worker, to which the frame belongs.
            num_bytes: of header and payload.
        """

    def served(self, request: int, seconds: float, *, is_pull: bool) -> None:
        """A server has done what a frame asked for.

        Args:
            request: number of the worker's request.
            seconds: that it took.
        """

    def during(self, kind: str) -> AbstractContextManager[None]:
        """While the executor does something that is not part of a turn, such as `load`."""
        return nullcontext()
