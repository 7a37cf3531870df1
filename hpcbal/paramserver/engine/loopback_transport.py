"""Frames between ranks in one process: executors run in threads of a test, or on a virtual machine."""

from __future__ import annotations

import ctypes
import os
from collections import defaultdict, deque
from collections.abc import Callable

from hpcbal.paramserver.engine.wire import Header, Lane, Segments, Then, Transport


class _Mailbox:
    """Headers and payloads from other ranks to one."""

    def __init__(self, num_ranks: int) -> None:
        self.headers: deque[Header] = deque()
        # All made here: two threads must not make the same one.
        self.payloads: dict[tuple[int, Lane], deque[_Outgoing]] = {
            (source, lane): deque() for source in range(num_ranks) for lane in Lane
        }


class LoopbackTransport(Transport):
    """One end; ends may live in different threads.

    As over shared memory, the receiver copies a payload from where it lies at the sender, who must leave it
    as it is until then. A header is copied when it is sent.
    """

    def __init__(self, rank: int, mailboxes: list[_Mailbox]) -> None:
        self._rank = rank
        self.mailboxes = mailboxes
        self._on_header: Callable[[Header], None] | None = None
        self.sending: list[_Outgoing] = []
        # In order of start, by source and lane.
        self.receiving: dict[tuple[int, Lane], deque[tuple[Segments, Then]]] = defaultdict(deque)

    @classmethod
    def connect(cls, num_ranks: int) -> list[LoopbackTransport]:
        """Make connected ends for `num_ranks` ranks, in order of rank."""
        mailboxes = [_Mailbox(num_ranks) for _ in range(num_ranks)]
        return [cls(rank, mailboxes) for rank in range(num_ranks)]

    @property
    def rank(self) -> int:
        return self._rank

    @property
    def size(self) -> int:
        return len(self.mailboxes)

    @property
    def num_active(self) -> int:
        return len(self.sending) + sum(map(len, self.receiving.values()))

    def open(self, on_header: Callable[[Header], None]) -> None:
        self._on_header = on_header

    def send(
        self,
        destination: int,
        lane: Lane,
        header: Header,
        payload: Segments | None = None,
        then: Then | None = None,
    ) -> None:
        sent = _Outgoing(payload or Segments(()), then)
        self.sending.append(sent)
        mailbox = self.mailboxes[destination]
        if not sent.is_taken:
            mailbox.payloads[self._rank, lane].append(sent)
        mailbox.headers.append(header.copy())

    def receive(self, source: int, lane: Lane, payload: Segments, then: Then) -> None:
        self.receiving[source, lane].append((payload, then))

    def poll(self) -> bool:
        happened = self._receive_payloads()
        sent: list[_Outgoing] = []
        sending: list[_Outgoing] = []
        for transfer in self.sending:  # each is looked at once: its receiver's thread may take it meanwhile
            (sent if transfer.is_taken else sending).append(transfer)
        self.sending = sending
        for transfer in sent:
            happened = True
            if transfer.then is not None:
                transfer.then()
        try:
            header = self.mailboxes[self._rank].headers.popleft()
        except IndexError:
            if not happened:
                os.sched_yield()  # to the threads of other ranks; MPI also yields when it has found nothing
            return happened
        assert self._on_header is not None
        self._on_header(header)
        return True

    def _receive_payloads(self) -> bool:
        happened = False
        for key, waiting in list(self.receiving.items()):
            arrived = self.mailboxes[self._rank].payloads[key]
            while waiting and arrived:
                (payload, then), outgoing = waiting.popleft(), arrived.popleft()
                _copy(outgoing.payload, payload)
                outgoing.is_taken = True  # the sender's thread notices
                then()
                happened = True
        return happened

    def close(self) -> None:
        assert self.num_active == 0, "a transport was closed with transfers on their way"


class _Outgoing:
    """A frame that was sent; `is_taken`: whether its payload, if it has any, has been received."""

    __slots__ = ("is_taken", "payload", "then")

    def __init__(self, payload: Segments, then: Then | None) -> None:
        self.payload, self.then = payload, then
        self.is_taken = not payload.num_bytes


def _copy(source: Segments, target: Segments) -> None:
    """Copy the bytes of one list of runs to another one of the same length that is cut elsewhere."""
    if source.num_bytes != target.num_bytes:
        raise ValueError(f"{source.num_bytes} bytes were sent, but {target.num_bytes} are expected")
    to = iter(target.runs)
    to_address, room = 0, 0
    for address, length in source.runs:
        while length:
            if not room:
                to_address, room = next(to)
            piece = min(length, room)
            ctypes.memmove(to_address, address, piece)
            address, length = address + piece, length - piece
            to_address, room = to_address + piece, room - piece
