"""What a rank does now, where the other ranks of its node can read it after its death."""

from __future__ import annotations

from typing import Any

NUM_BYTES = 160
"""Of a rank's text; a longer one is cut."""


class Activity:
    """One rank's own text, such as "training resnet8"; in shared memory once `keep_in` was called."""

    def __init__(self) -> None:
        self._memory: Any = bytearray(NUM_BYTES)

    def keep_in(self, memory: Any) -> None:
        """Move the text into this buffer of `NUM_BYTES` bytes."""
        memory[:] = self._memory[:]
        self._memory = memory

    def note(self, doing: str) -> None:
        """Replace the text."""
        self._memory[:] = doing.encode()[:NUM_BYTES].ljust(NUM_BYTES, b"\0")

    def __str__(self) -> str:
        return text_in(self._memory)


def text_in(memory: Any) -> str:
    """The text in a rank's buffer; empty if the rank has noted nothing."""
    return bytes(memory).partition(b"\0")[0].decode(errors="replace")


def seen(activity: object) -> str:
    """A rank's last activity, for a sentence about its end: behind the rank and its host; may be empty."""
    return f" (last seen {activity})" if str(activity) else ""
