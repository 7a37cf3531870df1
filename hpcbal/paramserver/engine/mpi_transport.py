"""Frames over MPI: persistent requests, one header receive for all sources, derived datatypes for runs.

Repeated transfers of the same arrays only restart their requests. That halves what Python adds to a message
of 64 KB.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from mpi4py import MPI

from hpcbal.paramserver.engine.transport import (
    MAX_HEADER_WORDS,
    NUM_STREAMS,
    Header,
    Lane,
    Segments,
    Then,
    Transfer,
    Transport,
)

TAGS_OF_STREAM = 8


class MpiTransport(Transport):
    """Frames over a communicator.

    Args:
        comm: used for nothing else than transports.
        stream: transports of one communicator do not hear each other if their streams differ, modulo
            `NUM_STREAMS`. None: this one has the communicator for itself, and `close`, which all ranks call,
            frees it.
    """

    def __init__(self, comm: MPI.Intracomm, stream: int | None = None) -> None:
        self.comm = comm
        self._has_own_comm = stream is None
        self._first_tag = (stream or 0) % NUM_STREAMS * TAGS_OF_STREAM
        self._arriving = np.zeros(MAX_HEADER_WORDS, np.int64)
        tag = self._first_tag + Lane.HEADERS
        self._header_request = comm.Recv_init(self._arriving, source=MPI.ANY_SOURCE, tag=tag)
        self._on_header: Callable[[Header], None] | None = None
        # Parallel: requests that are on their way, and whose they are. The first is the next header's.
        self.requests: list[MPI.Request] = [self._header_request]
        self.owners: list[_MpiTransfer | None] = [None]

    @property
    def rank(self) -> int:
        return self.comm.rank

    @property
    def size(self) -> int:
        return self.comm.size

    @property
    def num_active(self) -> int:
        return len(self.requests) - 1

    def open(self, on_header: Callable[[Header], None]) -> None:
        self._on_header = on_header
        self._header_request.Start()

    def outgoing(
        self, destination: int, lane: Lane, header: Header | None, payload: Segments | None = None
    ) -> Transfer:
        tag = self._first_tag + Lane.HEADERS
        requests = [] if header is None else [self.comm.Send_init(header, dest=destination, tag=tag)]
        types: list[MPI.Datatype] = []
        if payload is not None and payload.runs:
            spec = _spec(payload, types)
            requests.append(self.comm.Send_init(spec, dest=destination, tag=self._first_tag + lane))
        return _MpiTransfer(self, requests, types, (header, payload))

    def incoming(self, source: int, lane: Lane, payload: Segments) -> Transfer:
        types: list[MPI.Datatype] = []
        request = self.comm.Recv_init(_spec(payload, types), source=source, tag=self._first_tag + lane)
        return _MpiTransfer(self, [request], types, payload)

    def poll(self) -> bool:
        requests = self.requests
        if len(requests) == 1:  # the cheaper call, where servers spend their time
            if not self._header_request.Test():
                return False
            self._receive_header()
            return True
        done = MPI.Request.Testsome(requests)
        if not done:
            return False
        finished = []
        for index in sorted(done, reverse=True):  # from the end, so that the others keep their places
            if index:
                owner = self.owners[index]
                last, last_owner = requests.pop(), self.owners.pop()
                if index < len(requests):
                    requests[index], self.owners[index] = last, last_owner
                finished.append(owner)
        for owner in finished:
            assert owner is not None
            owner.finish_one()
        if 0 in done:
            self._receive_header()
        return True

    def _receive_header(self) -> None:
        assert self._on_header is not None
        self._on_header(self._arriving)
        self._header_request.Start()

    def close(self) -> None:
        if self._on_header is not None:
            self._header_request.Cancel()
            self._header_request.Wait()
        self._header_request.Free()
        if self._has_own_comm:
            self.comm.Free()


class _MpiTransfer(Transfer):
    """Persistent requests that are started together.

    Args:
        types: datatypes made for it.
        kept: what MPI reads or fills.
    """

    __slots__ = ("_kept", "_left", "_requests", "_then", "_transport", "_types")

    def __init__(
        self,
        transport: MpiTransport,
        requests: list[MPI.Prequest],
        types: list[MPI.Datatype],
        kept: object,
    ) -> None:
        self._transport = transport
        self._requests = requests
        self._types = types
        self._kept = kept
        self._left = 0
        self._then: Then | None = None
        self.is_done = True

    def start(self, then: Then | None = None) -> None:
        assert self.is_done, "a transfer was started twice"
        self.is_done = False
        self._then = then
        requests, transport = self._requests, self._transport
        self._left = len(requests)
        for request in requests:
            request.Start()
            transport.requests.append(request)
            transport.owners.append(self)

    def finish_one(self) -> None:
        """Count one of the requests as done."""
        self._left -= 1
        if not self._left:
            self.is_done = True
            then, self._then = self._then, None
            if then is not None:
                then()

    def cancel(self) -> None:
        assert not self.is_done, "a transfer was cancelled that is not on its way"
        for request in self._requests:
            index = self._transport.requests.index(request)
            del self._transport.requests[index], self._transport.owners[index]
            request.Cancel()
            request.Wait()
        self.is_done, self._then = True, None

    def free(self) -> None:
        assert self.is_done, "a transfer was freed on its way"
        for request in self._requests:
            request.Free()
        for datatype in self._types:
            datatype.Free()
        self._requests, self._types = [], []


def _spec(payload: Segments, types: list[MPI.Datatype]) -> object:
    """What mpi4py sends or receives; a datatype that it needs is added to `types`."""
    if len(payload.runs) == 1:
        address, length = payload.runs[0]
        return [MPI.buffer.fromaddress(address, length), MPI.BYTE]
    addresses, lengths = zip(*payload.runs, strict=True)
    datatype = MPI.BYTE.Create_hindexed(lengths, addresses).Commit()
    types.append(datatype)
    return [MPI.BOTTOM, 1, datatype]
