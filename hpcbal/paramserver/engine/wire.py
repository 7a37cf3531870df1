"""Frames between ranks: a small header, and arrays that go from where they lie to where they belong.

Frames have a meaning: what executors ask of each other. They are sent, paced and handed to whom they concern.
"""

from __future__ import annotations

import enum
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from hpcbal.paramserver.store.links import Link

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


class PacedLink:
    """The link of one executor: holds frames back until they would have arrived.

    Times are those of `time.monotonic_ns`, so all executors of an emulation run on one node.

    Args:
        bytes_per_s: in each direction, > 0.
    """

    def __init__(self, bytes_per_s: float) -> None:
        self._link: Link[Callable[[], None]] = Link(bytes_per_s)

    def leave(self, num_bytes: int) -> tuple[int, int]:
        """Take the link for a frame; returns when it starts and when its last byte has left, in ns."""
        return self._link.leave(time.monotonic_ns(), num_bytes)

    def arrive(self, num_bytes: int, start_ns: int, end_ns: int, handle: Callable[[], None]) -> None:
        """Call `handle` when a frame has arrived over this link.

        Args:
            start_ns, end_ns: from the sender's `leave`.
        """
        self._link.announce(handle, num_bytes, start_ns, end_ns)

    def poll(self, now_s: float) -> bool:
        """Handle what has arrived; returns whether there was anything."""
        arrived = self._link.arrived(time.monotonic_ns())
        for handle in arrived:
            handle()
        return bool(arrived)

    @property
    def is_idle(self) -> bool:
        """Whether nothing is on its way to this executor, as far as it knows."""
        return self._link.next_ns is None


ALL_ROWS = -1
"""In an entry of a frame: the whole block."""

ENTRY_WORDS = 3
FIRST_ENTRY = 10
"""Words of a header before its entries."""

HEADER_BYTES, ENTRY_BYTES = 8 * FIRST_ENTRY, 8 * ENTRY_WORDS
"""Bytes of a frame without entries and payload, and of an entry."""

MAX_ENTRIES = (MAX_HEADER_WORDS - FIRST_ENTRY) // ENTRY_WORDS
"""Blocks of one frame."""


class FrameKind(enum.IntEnum):
    """A kind of frame, with the meaning of its entries."""

    PULL = 1
    """Worker -> owner: (block, number of the worker's last push to it, rows or -1). Payload: ids of rows."""
    PULLED = 2
    """Owner -> worker: (block, 0, rows or -1). Payload: values."""
    PUSH = 3
    """Worker -> owner: (block, number of the push, rows or -1). Payload: ids of rows, then deltas."""
    APPLIED = 4
    """Owner -> worker: `share` blocks of the push are in the values. No entries."""
    GIVE_PARAMETERS = 5
    """Old owner -> new one: (block, workers that have pushed to it, last evaluated epoch), and (block, last
    step, kept rows). Payload: values, pairs of worker and number of its last push, places of rows that are
    kept as they were before the step, and these rows."""
    GIVE_DATA = 6
    """Old owner -> new one: (block, 0, 0). Payload: its cursor, and the state that has changed since it was
    copied."""
    FORWARDED_PUSH = 7
    """Old owner -> new one: as `PUSH`. On the lane of blocks that move, where no payload has to wait for
    room: pushes for which there is none may wait for this one."""
    TAKEN = 8
    """New owner -> old one: (block, kind of the frame that gave it, 0)."""
    COPY_DATA = 9
    """Old owner -> new one: (block, bytes of the whole copy, first byte of the payload). Payload: a piece."""
    COPIED = 10
    """New owner -> old one: (block, bytes that have arrived, 0)."""


LANES = {
    FrameKind.PULL: Lane.ROWS,
    FrameKind.PULLED: Lane.PULLED,
    FrameKind.PUSH: Lane.PUSHED,
    FrameKind.FORWARDED_PUSH: Lane.MOVED,
    FrameKind.GIVE_PARAMETERS: Lane.MOVED,
    FrameKind.GIVE_DATA: Lane.MOVED,
    FrameKind.COPY_DATA: Lane.MOVED,
}

Entries = NDArray[np.int64]
"""Shape (num_blocks, ENTRY_WORDS)."""

NO_ENTRIES: Entries = np.empty((0, ENTRY_WORDS), np.int64)

REQUESTS = frozenset({FrameKind.PULL, FrameKind.PUSH})
"""The frames of a worker."""


class Frame(NamedTuple):
    """A frame whose header has arrived.

    Attributes:
        source: the rank that sent it.
        kind: see `FrameKind`.
        request: number of the worker's request that it belongs to.
        origin: the worker whose request it is.
        step: the step that it belongs to, over the whole job.
        share: pulls: how many data blocks take the turn. `APPLIED`: see there.
        payload_bytes: of the payload, which the handler must receive if there is any.
        entries: see `FrameKind`.
    """

    source: int
    kind: int
    request: int
    origin: int
    step: int
    share: int
    payload_bytes: int
    entries: Entries


class Wire:
    """One executor's frames.

    Args:
        transport: opened by this class.
        link: how fast the executor's link is in emulation; None: as fast as it is.

    Attributes:
        rank: this executor.
        bytes_in, bytes_out: of headers and payloads, from and to other ranks.
        worker_bytes: of those, what the worker here has asked for: its pulls and pushes, and the values that
            it got; not what servers here send and receive.
        trace: gets all frames from and to other ranks; None: nobody does.
    """

    def __init__(self, transport: Transport, link: PacedLink | None = None) -> None:
        self.transport = transport
        self.link = link
        self.bytes_in = self.bytes_out = self.worker_bytes = 0
        self.rank = transport.rank
        self.trace: Tracer | None = None
        self._handlers: dict[int, Callable[[Frame], None]] = {}

    def on(self, kind: FrameKind, handler: Callable[[Frame], None]) -> None:
        """Hand frames of a kind to `handler`."""
        self._handlers[kind] = handler

    def open(self) -> None:
        """Begin to receive, after all handlers are known."""
        self.transport.open(self._on_header)

    def send(
        self,
        destination: int,
        kind: FrameKind,
        entries: Entries | Sequence[tuple[int, int, int]],
        payload: Segments | None = None,
        request: int = 0,
        origin: int | None = None,
        step: int = 0,
        share: int = 0,
        then: Then | None = None,
    ) -> None:
        """Send a frame; see `Frame`.

        Args:
            entries: at most `MAX_ENTRIES`.
            origin: the worker whose request it is; None: this rank.
            then: called when the payload is no longer needed.
        """
        rank, num_bytes = self.rank, payload.num_bytes if payload else 0
        origin = rank if origin is None else origin
        start_ns = end_ns = 0
        frame_bytes = HEADER_BYTES + ENTRY_BYTES * len(entries) + num_bytes
        if destination != rank:
            self._count_out(kind, request, frame_bytes, is_of_worker=kind in REQUESTS and origin == rank)
            if self.link is not None:
                start_ns, end_ns = self.link.leave(frame_bytes)
        header = np.empty(FIRST_ENTRY + ENTRY_WORDS * len(entries), np.int64)
        fields = rank, kind, request, origin, num_bytes, start_ns, end_ns, len(entries), step, share
        header[:FIRST_ENTRY] = fields
        if len(entries):
            header[FIRST_ENTRY:] = np.asarray(entries, np.int64).ravel()
        self.transport.send(destination, LANES.get(kind, Lane.HEADERS), header, payload, then)

    def receive(self, frame: Frame, payload: Segments, then: Then) -> None:
        """Receive a frame's payload; `then` is called when it is there."""
        self.transport.receive(frame.source, LANES[FrameKind(frame.kind)], payload, then)

    def _count_out(self, kind: FrameKind, request: int, num_bytes: int, *, is_of_worker: bool) -> None:
        self.bytes_out += num_bytes
        if is_of_worker:
            self.worker_bytes += num_bytes
        if self.trace is not None:
            self.trace.message(kind, request, num_bytes, is_sent=True)

    def _on_header(self, header: Header) -> None:
        fields = header[:FIRST_ENTRY].tolist()
        source, kind, request, origin, num_bytes, start_ns, end_ns, count, step, share = fields
        stop = FIRST_ENTRY + ENTRY_WORDS * count
        entries = header[FIRST_ENTRY:stop].copy().reshape(count, ENTRY_WORDS) if count else NO_ENTRIES
        frame = Frame(source, kind, request, origin, step, share, num_bytes, entries)
        if source != self.rank:
            num_bytes += 8 * stop
            self.bytes_in += num_bytes
            if kind == FrameKind.PULLED:
                self.worker_bytes += num_bytes
            if self.trace is not None:
                self.trace.message(kind, request, num_bytes, is_sent=False)
            if self.link is not None:
                self.link.arrive(num_bytes, start_ns, end_ns, lambda: self._handle(frame))
                return
        self._handle(frame)

    def _handle(self, frame: Frame) -> None:
        self._handlers[frame.kind](frame)
