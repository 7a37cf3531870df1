"""Carry samples from worker to worker while both continue training, one piece at a time."""

from __future__ import annotations

import enum
import pickle
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from hpcbal.comm.backoff import Backoff
from hpcbal.data.dataset import RawSample

if TYPE_CHECKING:
    from mpi4py import MPI

PIECE_BYTES = 2**20
"""Samples of about this size travel in one message, so that packing one delays no step."""

HEAD_BYTES = 8
"""Length of a piece's table, at the start of the piece."""

Sample = tuple[int, RawSample, NDArray[Any]]
"""Id, the sample as the dataset returned it, and its label."""


class Tag(enum.IntEnum):
    """Message tags of the transfers' own communicator."""

    PIECE = 1  # sender -> receiver of a migration: some of the samples, see `pack`


@dataclass(slots=True)
class _Outgoing:
    """What one other worker has yet to receive."""

    ids: list[int]
    request: MPI.Request | None = None
    piece: NDArray[np.uint8] | None = None  # kept alive while MPI reads it
    num_pieces: int = 0


@dataclass(slots=True)
class _Incoming:
    """What one other worker has yet to send."""

    num_missing: int
    request: MPI.Request | None = None
    piece: NDArray[np.uint8] | None = None
    num_pieces: int = 0


@dataclass(slots=True)
class SampleTransfer:
    """One worker's side of a migration.

    Everything happens in `step`, in the caller's thread and without blocking. Sends are synchronous, so at
    most one piece per sender waits at a receiver. Samples stay with their sender; received samples wait in
    `received` until this worker has everything.

    Args:
        comm: communicator of the workers, used for nothing else.
        outgoing: ids for each receiver.
        incoming: number of samples from each sender.
        read: returns a sample of this worker by its id.

    Attributes:
        received: received samples, in the order of arrival.
        sent_bytes: size of the pieces sent so far.
    """

    comm: MPI.Intracomm
    outgoing: Mapping[int, Sequence[int]]
    incoming: Mapping[int, int]
    read: Callable[[int], tuple[RawSample, NDArray[Any]]]
    received: list[Sample] = field(default_factory=list)
    sent_bytes: int = 0
    _to: dict[int, _Outgoing] = field(default_factory=dict)
    _from: dict[int, _Incoming] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Send nothing yet."""
        self._to = {rank: _Outgoing(list(ids)) for rank, ids in self.outgoing.items()}
        self._from = {rank: _Incoming(number) for rank, number in self.incoming.items()}

    @property
    def is_done(self) -> bool:
        """Whether everything that this worker sends has arrived, and everything that it receives."""
        given = all(to.request is None and not to.ids for to in self._to.values())
        return given and not any(source.num_missing for source in self._from.values())

    def step(self) -> bool:
        """Send and receive at most one piece each: each costs milliseconds while others wait.

        Returns: whether a piece was sent or received.
        """
        free = [rank for rank, to in self._to.items() if self._is_free(to)]
        unserved = next((rank for rank in free if self._to[rank].ids), None)
        if unserved is not None:
            self._send_piece(unserved, self._to[unserved])
        received = any(
            self._receive(rank, source, wanted=source.num_missing > 0) for rank, source in self._from.items()
        )
        return received or unserved is not None

    def abandon(self) -> None:
        """End the migration half-way; pieces that were sent are received and dropped; collective.

        Every sender announces how many pieces it has sent, so that no message stays in the communicator.
        """
        sent, expected = np.zeros(self.comm.size, np.int64), np.empty(self.comm.size, np.int64)
        for rank, to in self._to.items():
            sent[rank] = to.num_pieces
        announced = self.comm.Ialltoall(sent, expected)
        backoff = Backoff()
        is_announced = is_clear = False
        while not (is_announced and is_clear):
            backoff.wait()
            is_announced = is_announced or bool(announced.Test())
            is_clear = True
            for to in self._to.values():
                is_clear = self._is_free(to) and is_clear
            for rank, source in self._from.items():
                self._receive(rank, source, wanted=not is_announced or source.num_pieces < expected[rank])
                is_clear = is_clear and is_announced and source.num_pieces == expected[rank]
        self.received.clear()

    @staticmethod
    def _is_free(to: _Outgoing) -> bool:
        if to.request is not None and to.request.Test():
            to.request = to.piece = None
        return to.request is None

    def _send_piece(self, rank: int, to: _Outgoing) -> None:
        samples: list[Sample] = []
        num_bytes = 0
        while to.ids and num_bytes < PIECE_BYTES:
            sample_id = to.ids.pop()
            raw, label = self.read(sample_id)
            samples.append((sample_id, raw, label))
            num_bytes += len(raw) if isinstance(raw, bytes) else np.asarray(raw).nbytes
        to.piece = pack(samples)
        to.num_pieces += 1
        self.sent_bytes += to.piece.nbytes
        to.request = self.comm.Issend(to.piece, dest=rank, tag=Tag.PIECE)

    def _receive(self, rank: int, source: _Incoming, *, wanted: bool) -> bool:
        """Receive what has come from `rank`; return whether a piece is complete."""
        if source.request is None and wanted:
            from mpi4py import MPI  # imported here: code that only names this class needs no MPI

            status = MPI.Status()
            if self.comm.Iprobe(source=rank, tag=Tag.PIECE, status=status):
                source.piece = np.empty(status.Get_count(MPI.BYTE), np.uint8)
                source.request = self.comm.Irecv(source.piece, source=rank, tag=Tag.PIECE)
        if source.request is None or not source.request.Test():
            return False
        assert source.piece is not None
        samples = list(unpack(source.piece))
        self.received += samples
        source.num_missing -= len(samples)
        source.num_pieces += 1
        source.request = source.piece = None
        return True


def pack(samples: Sequence[Sample]) -> NDArray[np.uint8]:
    """Pack samples into bytes: length of the pickled table, table (ids, lengths, labels, shapes), samples.

    Args:
        samples: at least one.
    """
    raws: list[Any] = [raw if isinstance(raw, bytes) else np.ascontiguousarray(raw) for _, raw, _ in samples]
    shapes = [None if isinstance(raw, bytes) else (raw.dtype.str, raw.shape) for raw in raws]
    lengths = [len(raw) if isinstance(raw, bytes) else raw.nbytes for raw in raws]
    ids = [sample_id for sample_id, _, _ in samples]
    labels = np.array([label for _, _, label in samples])
    table = pickle.dumps((ids, lengths, labels, shapes[:1] if len(set(shapes)) == 1 else shapes))
    head = len(table).to_bytes(HEAD_BYTES, "little")
    return np.frombuffer(b"".join([head, table, *raws]), np.uint8)


def unpack(piece: NDArray[np.uint8]) -> Iterator[Sample]:
    """The inverse of `pack`; arrays are views of `piece`."""
    start = HEAD_BYTES + int.from_bytes(piece[:HEAD_BYTES].tobytes(), "little")
    ids, lengths, labels, shapes = pickle.loads(piece[HEAD_BYTES:start].tobytes())
    for index, (sample_id, length) in enumerate(zip(ids, lengths, strict=True)):
        buffer, start = piece[start : start + length], start + length
        shape = shapes[index % len(shapes)]
        raw = buffer.tobytes() if shape is None else np.frombuffer(buffer, shape[0]).reshape(shape[1])
        yield sample_id, raw, labels[index]
