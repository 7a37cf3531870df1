"""Carry samples from worker to worker while both continue training, one piece at a time."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hpcbal.comm.backoff import Backoff
from hpcbal.comm.group_comm import Piece, PieceExchange
from hpcbal.data.dataset import RawSample

PIECE_BYTES = 2**20
"""Samples of about this size travel in one message, so that packing one delays no step."""

HEAD_BYTES = 8
"""Length of a piece's table, at the start of the piece."""

Sample = tuple[int, RawSample, NDArray[Any]]
"""Id, the sample as the dataset returned it, and its label."""


@dataclass(slots=True)
class _Outgoing:
    """The samples that one other worker has yet to receive."""

    ids: list[int]
    num_pieces: int = 0


@dataclass(slots=True)
class _Incoming:
    """The number of samples that one other worker has yet to send."""

    num_missing: int
    num_pieces: int = 0


@dataclass(slots=True)
class SampleTransfer:
    """One worker's side of a migration.

    Everything happens in `step`, in the caller's thread and without blocking. Samples stay with their sender;
    received samples wait in `received` until this worker has everything.

    Args:
        pieces: carries pieces between the workers, and nothing else.
        outgoing: ids for each receiver.
        incoming: number of samples from each sender.
        read: returns a sample of this worker by its id.

    Attributes:
        received: received samples, in the order of arrival.
    """

    pieces: PieceExchange
    outgoing: Mapping[int, Sequence[int]]
    incoming: Mapping[int, int]
    read: Callable[[int], tuple[RawSample, NDArray[Any]]]
    received: list[Sample] = field(default_factory=list)
    _to: dict[int, _Outgoing] = field(default_factory=dict)
    _from: dict[int, _Incoming] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Send nothing yet."""
        self._to = {rank: _Outgoing(list(ids)) for rank, ids in self.outgoing.items()}
        self._from = {rank: _Incoming(number) for rank, number in self.incoming.items()}

    @property
    def is_done(self) -> bool:
        """Whether everything that this worker sends has arrived, and everything that it receives."""
        given = all(not to.ids and self.pieces.is_free(rank) for rank, to in self._to.items())
        return given and not any(source.num_missing for source in self._from.values())

    def step(self) -> bool:
        """Send and receive at most one piece each: each costs milliseconds while others wait.

        Returns: whether a piece was sent or received.
        """
        free = [rank for rank in self._to if self.pieces.is_free(rank)]
        unserved = next((rank for rank in free if self._to[rank].ids), None)
        if unserved is not None:
            self._send_piece(unserved, self._to[unserved])
        received = any(
            source.num_missing and self._receive(rank, source) for rank, source in self._from.items()
        )
        return received or unserved is not None

    def abandon(self) -> None:
        """End the migration half-way; pieces that were sent are received and dropped; collective.

        Every sender announces how many pieces it has sent, so that no piece stays on its way.
        """
        sent = np.zeros(self.pieces.size, np.int64)
        for rank, to in self._to.items():
            sent[rank] = to.num_pieces
        expected = self.pieces.exchange_numbers(sent, self._receive_all)
        backoff = Backoff()
        while not self._is_clear(expected):
            self._receive_all()
            backoff.wait()
        self.received.clear()

    def _is_clear(self, expected: NDArray[np.int64]) -> bool:
        """Whether no piece is on its way to or from this worker."""
        has_all = all(source.num_pieces == expected[rank] for rank, source in self._from.items())
        return has_all and all(self.pieces.is_free(rank) for rank in self._to)

    def _send_piece(self, rank: int, to: _Outgoing) -> None:
        samples: list[Sample] = []
        num_bytes = 0
        while to.ids and num_bytes < PIECE_BYTES:
            sample_id = to.ids.pop()
            raw, label = self.read(sample_id)
            samples.append((sample_id, raw, label))
            num_bytes += len(raw) if isinstance(raw, bytes) else np.asarray(raw).nbytes
        piece = pack(samples)
        to.num_pieces += 1
        self.pieces.send(rank, piece)

    def _receive_all(self) -> None:
        for rank, source in self._from.items():
            self._receive(rank, source)

    def _receive(self, rank: int, source: _Incoming) -> bool:
        """Receive what has come from `rank`; return whether a piece is complete."""
        piece = self.pieces.receive(rank)
        if piece is None:
            return False
        samples = list(unpack(piece))
        self.received += samples
        source.num_missing -= len(samples)
        source.num_pieces += 1
        return True


def pack(samples: Sequence[Sample]) -> Piece:
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


def unpack(piece: Piece) -> Iterator[Sample]:
    """The inverse of `pack`; arrays are views of `piece`."""
    start = HEAD_BYTES + int.from_bytes(piece[:HEAD_BYTES].tobytes(), "little")
    ids, lengths, labels, shapes = pickle.loads(piece[HEAD_BYTES:start].tobytes())
    for index, (sample_id, length) in enumerate(zip(ids, lengths, strict=True)):
        buffer, start = piece[start : start + length], start + length
        shape = shapes[index % len(shapes)]
        raw = buffer.tobytes() if shape is None else np.frombuffer(buffer, shape[0]).reshape(shape[1])
        yield sample_id, raw, labels[index]
