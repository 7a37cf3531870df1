"""Frames with a meaning: what executors ask of each other, sent, paced and handed to whom they concern."""

from __future__ import annotations

import enum
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from hpcbal.paramserver.engine.pacing import PacedLink
from hpcbal.paramserver.engine.trace import Trace
from hpcbal.paramserver.engine.transport import (
    MAX_HEADER_WORDS,
    Header,
    Lane,
    Segments,
    Then,
    Transfer,
    Transport,
)

ENTRY_WORDS = 3
FIRST_ENTRY = 10
"""Words of a header before its entries."""

MAX_ENTRIES = (MAX_HEADER_WORDS - FIRST_ENTRY) // ENTRY_WORDS
"""Blocks of one frame."""


class Kind(enum.IntEnum):
    """What a frame is, and what its entries hold."""

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
    ROUTE = 9
    """Worker -> owner: the blocks of a route in order, (block, 0, 0); `request` is the number of the
    route."""
    PULL_ROUTE = 10
    """Worker -> owner: (route, number of the worker's last push over it, 1 if it has prepared for an answer
    without header): all its blocks."""
    PULLED_ROUTE = 11
    """Owner -> worker: (route, 0, 0). Payload: values of all its blocks."""
    PUSH_ROUTE = 12
    """Worker -> owner: (route, number of the push, 0). Payload: deltas of all its blocks."""
    TAKEN = 8
    """New owner -> old one: (block, kind of the frame that gave it, 0)."""
    CLOSE_ROUTE = 15
    """Worker -> owner: (route, 0, 0): the worker uses it no more. Its pushes may still wait for room."""
    COPY_DATA = 13
    """Old owner -> new one: (block, bytes of the whole copy, first byte of the payload). Payload: a piece."""
    COPIED = 14
    """New owner -> old one: (block, bytes that have arrived, 0)."""


LANES = {
    Kind.PULL: Lane.ROWS,
    Kind.PULLED: Lane.PULLED,
    Kind.PUSH: Lane.PUSHED,
    Kind.PULLED_ROUTE: Lane.PULLED,
    Kind.PUSH_ROUTE: Lane.PUSHED,
    Kind.FORWARDED_PUSH: Lane.MOVED,
    Kind.GIVE_PARAMETERS: Lane.MOVED,
    Kind.GIVE_DATA: Lane.MOVED,
    Kind.COPY_DATA: Lane.MOVED,
}

Entries = NDArray[np.int64]
"""Shape (num_blocks, ENTRY_WORDS)."""

NO_ENTRIES: Entries = np.empty((0, ENTRY_WORDS), np.int64)

REQUESTS = frozenset({Kind.PULL, Kind.PUSH, Kind.PULL_ROUTE, Kind.PUSH_ROUTE})
"""What a worker sends."""
ANSWERS = frozenset({Kind.PULLED, Kind.PULLED_ROUTE})
"""What a worker gets, beside acknowledgements."""

WITH_ONE_ENTRY = frozenset({Kind.PULL_ROUTE, Kind.PULLED_ROUTE, Kind.PUSH_ROUTE, Kind.CLOSE_ROUTE})
"""Frames whose handlers read `Frame.first`: what is sent most often is parsed fastest."""


class Frame(NamedTuple):
    """A frame whose header has arrived.

    Attributes:
        source: the rank that sent it.
        kind: see `Kind`.
        request: number of the worker's request that it belongs to.
        origin: the worker whose request it is.
        step: the step that it belongs to, over the whole job.
        share: pulls: how many data blocks take the turn. `APPLIED`: see there.
        payload_bytes: of the payload, which the handler must receive if there is any.
        first: the first entry; of no use if there is none.
        entries: see `Kind`; none if the kind is `WITH_ONE_ENTRY`.
    """

    source: int
    kind: int
    request: int
    origin: int
    step: int
    share: int
    payload_bytes: int
    first: Sequence[int]
    entries: Entries


class Sender:
    """A frame that may be sent repeatedly.

    Attributes:
        entries: words of the header, which may be changed between.
    """

    __slots__ = ("_destination", "_header", "_is_of_worker", "_num_bytes", "_transfer", "_wire", "entries")

    def __init__(self, wire: Wire, destination: int, header: Header, payload: Segments | None) -> None:
        self._wire, self._destination, self._header = wire, destination, header
        self._is_of_worker = int(header[1]) in REQUESTS and int(header[3]) == wire.rank
        kind = Kind(int(header[1]))
        lane = LANES.get(kind, Lane.HEADERS)
        self.entries = header[FIRST_ENTRY:].reshape(-1, ENTRY_WORDS)
        self._transfer: Transfer = wire.transport.outgoing(destination, lane, header, payload)
        self._num_bytes = header.nbytes + (payload.num_bytes if payload else 0)

    @property
    def is_done(self) -> bool:
        """Whether the payload may be changed, and the frame sent again."""
        return self._transfer.is_done

    def send(self, request: int, step: int = 0, share: int = 0, then: Then | None = None) -> None:
        """Send it; `then` is called when the payload is no longer needed."""
        header = self._header
        header[2], header[8], header[9] = request, step, share
        self._wire.count_out(self._destination, header, self._num_bytes, self._is_of_worker)
        self._transfer.start(then)

    def free(self) -> None:
        """Give up what the transport keeps for it; only when done."""
        self._transfer.free()


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
        self.trace: Trace | None = None
        self._handlers: dict[int, Callable[[Frame], None]] = {}

    def on(self, kind: Kind, handler: Callable[[Frame], None]) -> None:
        """Hand frames of a kind to `handler`."""
        self._handlers[kind] = handler

    def open(self) -> None:
        """Begin to receive, after all handlers are known."""
        self.transport.open(self._on_header)

    def prepare(
        self,
        destination: int,
        kind: Kind,
        entries: Entries | Sequence[tuple[int, int, int]],
        payload: Segments | None = None,
        origin: int | None = None,
    ) -> Sender:
        """Prepare a frame to be sent, maybe more than once.

        Args:
            entries: at most `MAX_ENTRIES`.
            origin: the worker whose request it is; None: this rank.
        """
        header = np.empty(FIRST_ENTRY + ENTRY_WORDS * len(entries), np.int64)
        num_bytes = payload.num_bytes if payload else 0
        header[:FIRST_ENTRY] = (
            self.rank,
            kind,
            0,
            self.rank if origin is None else origin,
            num_bytes,
            0,
            0,
            len(entries),
            0,
            0,
        )
        if len(entries):
            header[FIRST_ENTRY:] = np.asarray(entries, np.int64).ravel()
        return Sender(self, destination, header, payload)

    def send(
        self,
        destination: int,
        kind: Kind,
        entries: Entries | Sequence[tuple[int, int, int]],
        payload: Segments | None = None,
        request: int = 0,
        origin: int | None = None,
        step: int = 0,
        share: int = 0,
        then: Then | None = None,
    ) -> None:
        """Send a frame once; see `prepare` and `Frame`. `then` is called when the payload is no longer
        needed."""
        sender = self.prepare(destination, kind, entries, payload, origin)

        def finish() -> None:
            sender.free()
            if then is not None:
                then()

        sender.send(request, step, share, finish)

    def receive(self, frame: Frame, payload: Segments, then: Then) -> None:
        """Receive a frame's payload; `then` is called when it is there."""
        transfer = self.transport.incoming(frame.source, LANES[Kind(frame.kind)], payload)

        def finish() -> None:
            transfer.free()
            then()

        transfer.start(finish)

    def count_out(self, destination: int, header: Header, num_bytes: int, is_of_worker: bool) -> None:
        """Count a frame that is about to leave, and write its times into its header.

        Args:
            is_of_worker: whether the worker here asks for something.
        """
        if destination == self.rank:
            return
        self.bytes_out += num_bytes
        if is_of_worker:
            self.worker_bytes += num_bytes
        if self.trace is not None:
            self.trace.message(int(header[1]), int(header[2]), num_bytes, is_sent=True)
        if self.link is not None:
            header[5:7] = self.link.leave(num_bytes)

    def count_bare(self, request: int, num_bytes: int) -> None:
        """Count an answer to a request that has come without a header."""
        self.bytes_in += num_bytes
        self.worker_bytes += num_bytes
        if self.trace is not None:
            self.trace.message(Kind.PULLED_ROUTE, request, num_bytes, is_sent=False)

    def _on_header(self, header: Header) -> None:
        words = header[: FIRST_ENTRY + ENTRY_WORDS].tolist()
        source, kind, request, origin, num_bytes, start_ns, end_ns, count, step, share, *first = words
        stop = FIRST_ENTRY + ENTRY_WORDS * count
        entries = NO_ENTRIES
        if count and kind not in WITH_ONE_ENTRY:
            entries = header[FIRST_ENTRY:stop].copy().reshape(count, ENTRY_WORDS)
        frame = Frame(source, kind, request, origin, step, share, num_bytes, first, entries)
        if source != self.rank:
            num_bytes += 8 * stop
            self.bytes_in += num_bytes
            if kind in ANSWERS:
                self.worker_bytes += num_bytes
            if self.trace is not None:
                self.trace.message(kind, request, num_bytes, is_sent=False)
            if self.link is not None:
                self.link.arrive(num_bytes, start_ns, end_ns, lambda: self._handle(frame))
                return
        self._handle(frame)

    def _handle(self, frame: Frame) -> None:
        self._handlers[frame.kind](frame)
