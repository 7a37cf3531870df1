"""Ranks as threads of one process: channels, collectives and pieces of data without MPI."""

from __future__ import annotations

import pickle
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hpcbal.comm.channel import Channel, Message
from hpcbal.comm.group_comm import GroupComm, Piece, PieceExchange, Reduction

TIMEOUT_S = 60.0
POLL_INTERVAL_S = 0.01


class MeetingTimeoutError(RuntimeError):
    """A thread never came; the others would wait forever."""


class MeetingAbortedError(RuntimeError):
    """Some thread has failed and ended the meeting for all."""


class Meeting:
    """`num_ranks` threads that exchange one value each per round.

    Each thread counts its own rounds, so a thread may start the next round while others still leave the last
    one.

    Args:
        num_ranks: threads that take part, >= 1.
        timeout_s: how long a thread waits for the others.
    """

    def __init__(self, num_ranks: int, timeout_s: float = TIMEOUT_S) -> None:
        self.num_ranks = num_ranks
        self._timeout_s = timeout_s
        self._changed = threading.Condition()
        self._rounds: dict[int, dict[int, Any]] = {}
        self._num_left: dict[int, int] = {}
        self._round_of_rank = [0] * num_ranks
        self._is_aborted = False

    def abort(self) -> None:
        """End the meeting: whoever waits or comes gets an error, as when MPI aborts a job."""
        with self._changed:
            self._is_aborted = True
            self._changed.notify_all()

    def exchange(self, rank: int, value: Any, poll: Callable[[], None] | None = None) -> list[Any]:
        """Return the values of all ranks, in order of rank, once the last one has come.

        Args:
            rank: rank of this thread, 0 to num_ranks - 1.
            value: passed to all threads; none of them may change it.
            poll: called every few milliseconds while others are missing.

        Raises:
            MeetingTimeoutError: if a rank is still missing after the timeout.
            MeetingAbortedError: if `abort` was called.
        """
        number = self._round_of_rank[rank]
        self._round_of_rank[rank] += 1
        deadline_s = time.monotonic() + self._timeout_s
        with self._changed:
            values = self._rounds.setdefault(number, {})
            values[rank] = value
            self._changed.notify_all()
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._is_aborted or self._is_full(values), POLL_INTERVAL_S)
                if self._is_full(values):
                    self._leave(number)
                    return [values[other] for other in range(self.num_ranks)]
                if self._is_aborted:
                    raise MeetingAbortedError(f"rank {rank} waits for others, one of which has failed")
            if time.monotonic() > deadline_s:
                missing = [other for other in range(self.num_ranks) if other not in values]
                raise MeetingTimeoutError(f"rank {rank} waited {self._timeout_s:g} s for ranks {missing}")
            if poll is not None:
                poll()

    def _is_full(self, values: dict[int, Any]) -> bool:
        return len(values) == self.num_ranks

    def _leave(self, number: int) -> None:
        self._num_left[number] = self._num_left.get(number, 0) + 1
        if self._num_left[number] == self.num_ranks:
            del self._rounds[number], self._num_left[number]


class LoopbackChannel(Channel):
    """One end of a set of mailboxes in this process; ends may live in different threads.

    A message is pickled and unpickled on its way, as it would be between processes: what cannot travel over
    MPI cannot travel here, and no two ranks share a value.
    """

    def __init__(self, rank: int, mailboxes: Sequence[deque[tuple[int, bytes]]]) -> None:
        self._rank = rank
        self._mailboxes = mailboxes

    @classmethod
    def connect(cls, num_ranks: int) -> list[LoopbackChannel]:
        """Make connected ends for `num_ranks` ranks, in order of rank."""
        mailboxes: list[deque[tuple[int, bytes]]] = [deque() for _ in range(num_ranks)]
        return [cls(rank, mailboxes) for rank in range(num_ranks)]

    @property
    def rank(self) -> int:
        return self._rank

    @property
    def size(self) -> int:
        return len(self._mailboxes)

    def send(self, destination: int, message: Message) -> None:
        self._mailboxes[destination].append((self._rank, pickle.dumps(message)))

    def send_to_all(self, destinations: Sequence[int], message: Message) -> None:
        data = pickle.dumps(message)
        for destination in destinations:
            self._mailboxes[destination].append((self._rank, data))

    def receive(self) -> tuple[int, Message] | None:
        try:
            source, data = self._mailboxes[self._rank].popleft()
        except IndexError:
            return None
        return source, pickle.loads(data)

    def is_sent(self) -> bool:
        """A sent message is in the other mailbox at once."""
        return True


_OPERATIONS: dict[Reduction, np.ufunc] = {"sum": np.add, "min": np.minimum, "max": np.maximum}


class LoopbackGroupComm(GroupComm):
    """One rank's end of a group whose ranks are threads.

    Args:
        rank: rank in the group.
        meeting: shared by the group's ranks and used for nothing else.
    """

    def __init__(self, rank: int, meeting: Meeting) -> None:
        self._rank = rank
        self._meeting = meeting

    @property
    def rank(self) -> int:
        return self._rank

    @property
    def size(self) -> int:
        return self._meeting.num_ranks

    def all_gather(self, mine: NDArray[Any], poll: Callable[[], None] | None = None) -> NDArray[Any]:
        return np.stack(self._meeting.exchange(self._rank, np.array(mine), poll))

    def all_reduce(self, mine: NDArray[Any], reduction: Reduction) -> NDArray[Any]:
        everyone = self._meeting.exchange(self._rank, np.array(mine))
        return np.asarray(_OPERATIONS[reduction].reduce(np.stack(everyone), axis=0), mine.dtype)

    def broadcast(self, array: NDArray[Any]) -> None:
        array[...] = self._meeting.exchange(self._rank, array.copy() if self._rank == 0 else None)[0]

    def open_pieces(self) -> LoopbackPieces:
        return LoopbackPieces(self, self._meeting.exchange(self._rank, {} if self._rank == 0 else None)[0])


class LoopbackPieces(PieceExchange):
    """One rank's end; a piece is copied on its way, as it would be between processes.

    Args:
        comm: the group.
        on_their_way: pieces by (sender, receiver), empty at first; shared by the ranks.
    """

    def __init__(self, comm: GroupComm, on_their_way: dict[tuple[int, int], Piece]) -> None:
        self._comm = comm
        self._on_their_way = on_their_way

    @property
    def rank(self) -> int:
        return self._comm.rank

    @property
    def size(self) -> int:
        return self._comm.size

    def send(self, destination: int, piece: Piece) -> None:
        self._on_their_way[self.rank, destination] = piece.copy()

    def is_free(self, destination: int) -> bool:
        return (self.rank, destination) not in self._on_their_way

    def receive(self, source: int) -> Piece | None:
        return self._on_their_way.pop((source, self.rank), None)

    def exchange_numbers(self, numbers: NDArray[np.int64], poll: Callable[[], None]) -> NDArray[np.int64]:
        given: NDArray[np.int64] = self._comm.all_gather(numbers, poll)[:, self.rank]
        return given

    def close(self) -> None:
        """Free nothing.

        Raises:
            RuntimeError: if a piece is on its way from or to this rank, which is a bug of ours.
        """
        left = [way for way in tuple(self._on_their_way) if self.rank in way]
        if left:
            raise RuntimeError(f"rank {self.rank}: pieces (sender, receiver) {left} were not received")
