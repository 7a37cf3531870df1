"""Carry frames between ranks: a small header, and arrays that go from where they lie to where they belong."""

from __future__ import annotations

import enum
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable

import numpy as np
from numpy.typing import NDArray

Header = NDArray[np.int64]
"""The first message of a frame, shape (num_words,). Word 0 is the rank that sends it."""

NUM_STREAMS = 2048
"""Streams that a communicator can carry: MPI allows tags up to 32,767 at least, and a stream has 8."""

MAX_HEADER_WORDS = 8192
"""64 KB; longer requests are sent as several frames."""

Then = Callable[[], None]


class Lane(enum.IntEnum):
    """A kind of payload. Each lane keeps its order, so one whose receiver has no room holds up no other."""

    HEADERS = 1
    """No payload: the headers themselves."""
    ROWS = 2
    """Worker -> server: ids of rows that a pull wants."""
    PULLED = 3
    """Server -> worker: values of parameters."""
    PUSHED = 4
    """Worker -> server: updates, with the ids of their rows if they are sparse."""
    MOVED = 5
    """From one executor to another: a block that changes its owner."""


class Segments:
    """Arrays whose bytes travel one after the other, as one message.

    Neighbours in memory count as one run. The bytes may be cut otherwise at the other end.

    Args:
        arrays: C-contiguous, in the order of the message.

    Attributes:
        runs: address and number of bytes of each run of neighbours.
        num_bytes: of all arrays.

    Raises:
        ValueError: for an array with gaps, which MPI cannot read in one run.
    """

    __slots__ = ("arrays", "num_bytes", "runs")

    def __init__(self, arrays: Iterable[NDArray[np.generic]]) -> None:
        self.arrays = tuple(arrays)
        self.num_bytes = sum(array.nbytes for array in self.arrays)
        runs: list[tuple[int, int]] = []
        for array in self.arrays:
            if not array.flags.c_contiguous:
                raise ValueError(f"an array of shape {array.shape} is not contiguous, so it cannot be sent")
            address, length = array.__array_interface__["data"][0], array.nbytes
            if runs and sum(runs[-1]) == address:
                runs[-1] = (runs[-1][0], runs[-1][1] + length)
            elif length:
                runs.append((address, length))
        self.runs = tuple(runs)


class Transport(ABC):
    """One rank's end. Nothing here waits: `poll` finds out what has happened, and runs what is to follow.

    Headers from one rank arrive in the order in which they were sent, and so do the payloads of one lane. A
    receiver asks for the payloads of one source and lane in the order of the headers.
    """

    @property
    @abstractmethod
    def rank(self) -> int:
        """This rank, 0 to size - 1."""

    @property
    @abstractmethod
    def size(self) -> int:
        """Number of ranks that the transport connects."""

    @abstractmethod
    def open(self, on_header: Callable[[Header], None]) -> None:
        """Begin to receive headers.

        Args:
            on_header: called by `poll` with each header, which is overwritten when the call returns.
        """

    @abstractmethod
    def send(
        self,
        destination: int,
        lane: Lane,
        header: Header,
        payload: Segments | None = None,
        then: Then | None = None,
    ) -> None:
        """Send a frame.

        Args:
            header: at most `MAX_HEADER_WORDS`; it must not change any more.
            payload: sent on `lane`, and not to be changed until `then`; None or empty: the frame is a header
                alone.
            then: called by `poll` when all of it has been sent.
        """

    @abstractmethod
    def receive(self, source: int, lane: Lane, payload: Segments, then: Then) -> None:
        """Receive a payload that is not empty, whose header is here.

        Args:
            then: called by `poll` when it is there.
        """

    @abstractmethod
    def poll(self) -> bool:
        """Notice what has arrived and what has been sent, and call what follows from it.

        Returns: whether anything has happened.
        """

    @property
    @abstractmethod
    def num_active(self) -> int:
        """Transfers that are on their way."""

    @abstractmethod
    def close(self) -> None:
        """Free what the transport uses; collective. No transfer may be on its way."""
