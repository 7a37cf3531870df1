"""A worker's side of parameter blocks: whom to ask, with which numbers, and what is still open."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np

from hpcbal.events.event_log import EventLog, MachineError
from hpcbal.paramserver.api.columns import IntArray
from hpcbal.paramserver.store.layout import Ownership

MAX_EVENTS = 100

Event = tuple[str, int, Any]
"""The kind of an event, the number of its request, and details."""


class ClientError(MachineError):
    """A worker got an answer that it has not asked for."""

    machine = "client of parameter blocks"


class Part(NamedTuple):
    """A part of a request, for one owner.

    Attributes:
        numbers: pull: of this worker's last push to each block; push: its own.
    """

    owner: int
    blocks: IntArray
    numbers: IntArray


class Client:
    """The pulls and pushes of one worker.

    Owners may be out of date: requests are forwarded then, and another rank answers than was asked, maybe in
    several parts. Pulls and pushes may overtake each other on their way; their numbers keep them in order.

    Args:
        rank: of the worker.
        ownership: as this rank has heard of it; the caller changes it.
        max_blocks: most blocks of a request; None: no limit.

    Attributes:
        pushed: number of this worker's last push to each block.
    """

    def __init__(self, rank: int, ownership: Ownership, max_blocks: int | None = None) -> None:
        self._rank = rank
        self.ownership = ownership
        self.pushed = np.zeros(ownership.num_blocks, np.int64)
        self._max_blocks = max_blocks
        self._numbers = itertools.count(1)
        self._pulls: dict[int, int] = {}  # request -> number of blocks that have not come
        self._pushes: dict[int, int] = {}  # request -> number of blocks that are not applied
        self._log: EventLog[Event] = EventLog(MAX_EVENTS, lambda event: f"request {event[1]}")

    @property
    def num_pulls(self) -> int:
        """Pulls that have not been answered in full."""
        return len(self._pulls)

    @property
    def num_pushes(self) -> int:
        """Pushes that have not been applied in full."""
        return len(self._pushes)

    def pull(self, num_blocks: int) -> int:
        """Start a pull of so many blocks, at least one; `parts` says whom to ask for them.

        Returns: the number of the request.
        """
        request = next(self._numbers)
        self._log.append(("pull", request, num_blocks))
        self._pulls[request] = num_blocks
        return request

    def push(self, blocks: IntArray) -> int:
        """Start a push; `parts` says whom to send it to.

        Args:
            blocks: each once; at least one.

        Returns: the number of the request.
        """
        request = next(self._numbers)
        self._log.append(("push", request, blocks))
        self._pushes[request] = len(blocks)
        self.pushed[blocks] += 1
        return request

    def parts(self, blocks: IntArray) -> Iterator[Part]:
        """Yield the parts of a pull or push that has just been started, each for one owner.

        Args:
            blocks: of the request, each once.
        """
        for owner, own in self.ownership.parts(blocks, self._rank, self._max_blocks):
            yield Part(owner, own, self.pushed[own])

    def answered(self, request: int, num_blocks: int) -> bool:
        """Values of so many blocks have come; returns whether the pull is over.

        Raises:
            ClientError: if so many were not awaited.
        """
        self._log.append(("answered", request, num_blocks))
        return self._count(self._pulls, request, num_blocks, "have come")

    def applied(self, request: int, num_blocks: int) -> bool:
        """So many blocks of a push are applied; returns whether all are.

        Raises:
            ClientError: if so many were not awaited.
        """
        self._log.append(("applied", request, num_blocks))
        return self._count(self._pushes, request, num_blocks, "are acknowledged")

    def _count(self, open_: dict[int, int], request: int, num_blocks: int, what: str) -> bool:
        left = open_.get(request, 0) - num_blocks
        if left < 0 or request not in open_:
            subject = f"request {request}"
            problem = f"{num_blocks} blocks {what}, {left + num_blocks} are awaited"
            raise ClientError(problem, subject, self._log.of(subject), self._log.events)
        if left:
            open_[request] = left
            return False
        del open_[request]
        return True
