"""Frames over MPI: one persistent header receive for all sources, and derived datatypes for runs of bytes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from mpi4py import MPI

from hpcbal.paramserver.engine.wire import (
    MAX_HEADER_WORDS,
    NUM_STREAMS,
    Header,
    Lane,
    Segments,
    Then,
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
        self._requests: list[MPI.Request] = [self._header_request]
        self._transfers: list[_Transfer | None] = [None]

    @property
    def rank(self) -> int:
        return self.comm.rank

    @property
    def size(self) -> int:
        return self.comm.size

    @property
    def num_active(self) -> int:
        return len(self._requests) - 1

    def open(self, on_header: Callable[[Header], None]) -> None:
        self._on_header = on_header
        self._header_request.Start()

    def send(
        self,
        destination: int,
        lane: Lane,
        header: Header,
        payload: Segments | None = None,
        then: Then | None = None,
    ) -> None:
        tag, types = self._first_tag, list[MPI.Datatype]()
        requests = [self.comm.Isend(header, dest=destination, tag=tag + Lane.HEADERS)]
        if payload is not None and payload.runs:
            requests.append(self.comm.Isend(_spec(payload, types), dest=destination, tag=tag + lane))
        self._begin(requests, _Transfer(len(requests), then, types, (header, payload)))

    def receive(self, source: int, lane: Lane, payload: Segments, then: Then) -> None:
        types: list[MPI.Datatype] = []
        request = self.comm.Irecv(_spec(payload, types), source=source, tag=self._first_tag + lane)
        self._begin([request], _Transfer(1, then, types, payload))

    def _begin(self, requests: list[MPI.Request], transfer: _Transfer) -> None:
        self._requests += requests
        self._transfers += [transfer] * len(requests)

    def poll(self) -> bool:
        requests, transfers = self._requests, self._transfers
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
                finished.append(transfers[index])
                last, last_transfer = requests.pop(), transfers.pop()
                if index < len(requests):
                    requests[index], transfers[index] = last, last_transfer
        for transfer in finished:
            assert transfer is not None
            transfer.finish_one()
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


@dataclass(slots=True)
class _Transfer:
    """Requests that were started together.

    Attributes:
        left: requests that are on their way.
        then: called when there are none.
        types: datatypes that were made for it.
        kept: what MPI reads or fills.
    """

    left: int
    then: Then | None
    types: list[MPI.Datatype]
    kept: object

    def finish_one(self) -> None:
        """Count one of the requests as done."""
        self.left -= 1
        if not self.left:
            for datatype in self.types:
                datatype.Free()
            if self.then is not None:
                self.then()


def _spec(payload: Segments, types: list[MPI.Datatype]) -> object:
    """Return a payload as mpi4py takes it; a datatype that it needs is added to `types`."""
    if len(payload.runs) == 1:
        address, length = payload.runs[0]
        return [MPI.buffer.fromaddress(address, length), MPI.BYTE]
    addresses, lengths = zip(*payload.runs, strict=True)
    datatype = MPI.BYTE.Create_hindexed(lengths, addresses).Commit()
    types.append(datatype)
    return [MPI.BOTTOM, 1, datatype]
