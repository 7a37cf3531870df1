"""Control messages between ranks in one process: roles run in tests and simulations without MPI."""

from __future__ import annotations

import pickle
from collections import deque
from collections.abc import Sequence

from hpcbal.comm.channel import Channel
from hpcbal.comm.message import Message


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
