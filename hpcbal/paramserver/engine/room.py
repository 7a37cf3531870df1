"""Room for pushes: their payloads stay at the senders while a server's buffers are full."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from hpcbal.paramserver.engine.buffers import Buffers
from hpcbal.paramserver.engine.wire import Frame

Receive = Callable[[Frame, NDArray[np.uint8]], None]
"""Receives the payload of a push into a buffer, which it gives back to the room."""


class PushRoom:
    """Admits the pushes to one server, in the order in which they come.

    Args:
        buffers: for payloads, also used by others.
    """

    def __init__(self, buffers: Buffers) -> None:
        self.buffers = buffers
        self._waiting: deque[Frame] = deque()
        self._receive: dict[int, Receive] = {}

    @property
    def is_idle(self) -> bool:
        """Whether no push waits for room."""
        return not self._waiting

    def on(self, kind: int, receive: Receive) -> None:
        """Receive frames of a kind with `receive`."""
        self._receive[kind] = receive

    def admit(self, frame: Frame) -> None:
        """Receive a push, now or as soon as there is room."""
        if self._waiting or not self.buffers.has_room(frame.payload_bytes):
            # Later ones wait too: the payloads of a source come in the order of their headers.
            self._waiting.append(frame)
            return
        self.admit_now(frame)

    def admit_now(self, frame: Frame) -> None:
        """Receive a push that must not wait."""
        self._receive[frame.kind](frame, self.buffers.take(frame.payload_bytes))

    def give(self, buffer: NDArray[np.uint8]) -> None:
        """A buffer is no longer needed, whatever it held; receive the pushes that waited for its room."""
        self.buffers.give(buffer)
        while self._waiting and self.buffers.has_room(self._waiting[0].payload_bytes):
            self.admit_now(self._waiting.popleft())
