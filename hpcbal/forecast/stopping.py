"""Stop replays that run in other threads, which no signal reaches."""

from __future__ import annotations

import numpy as np


class Stop:
    """A flag that replays look at, in Python and in C.

    Attributes:
        flag: shape (1,); not 0 once it is set.
    """

    __slots__ = ("flag",)

    def __init__(self) -> None:
        self.flag = np.zeros(1, dtype=np.uint8)

    @property
    def is_set(self) -> bool:
        """Whether replays should end."""
        return bool(self.flag[0])

    def set(self) -> None:
        """Let all replays that have this flag raise KeyboardInterrupt soon."""
        self.flag[0] = 1
