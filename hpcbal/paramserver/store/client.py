"""A worker's side of parameter blocks: whom to ask, with which numbers, and what is still open."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple, NoReturn

import numpy as np

from hpcbal.machines import EventLog, MachineError
from hpcbal.paramserver.contract import IntArray
from hpcbal.paramserver.store.ownership import Ownership

MAX_EVENTS = 100

Event = tuple[str, int, Any]
"""What happened, to which request, and more of it."""


class ClientError(MachineError):
    """A worker got an answer that it has not asked for."""

    machine = "client of parameter blocks"


class Part(NamedTuple):
    """What one owner is asked.

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
        ownership: as this rank has heard of it; the caller changes it.
        pushed: numbers of this worker's last pushes by block, from a checkpoint; None: it has not pushed yet.
        max_blocks: most blocks of a request; None: no limit.

    Attributes:
        pushed: number of this worker's last push to each block.
    """

    def __init__(
        self, ownership: Ownership, pushed: IntArray | None = None, max_blocks: int | None = None
    ) -> None:
        self.ownership = ownership
        self.pushed = np.zeros(ownership.num_blocks, np.int64) if pushed is None else pushed.copy()
        self._max_blocks = max_blocks
        self._numbers = itertools.count(1)
        self._pulls: dict[int, set[int]] = {}  # request -> blocks that have not come
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

    def pull(self, blocks: IntArray) -> tuple[int, list[Part]]:
        """Start a pull.

        Args:
            blocks: each once; at least one.

        Returns: the number of the request, and what to ask of whom.
        """
        request = next(self._numbers)
        self._log.append(("pull", request, blocks))
        self._pulls[request] = set(blocks.tolist())
        return request, self._parts(blocks)

    def push(self, blocks: IntArray) -> tuple[int, list[Part]]:
        """Start a push; see `pull`."""
        request = next(self._numbers)
        self._log.append(("push", request, blocks))
        self._pushes[request] = len(blocks)
        self.pushed[blocks] += 1
        return request, self._parts(blocks)

    def _parts(self, blocks: IntArray) -> list[Part]:
        return [
            Part(owner, own, self.pushed[own])
            for owner, own in self.ownership.parts(blocks, self._max_blocks)
        ]

    def answered(self, request: int, blocks: Sequence[int]) -> bool:
        """Values of blocks have come; returns whether the pull is over.

        Raises:
            ClientError: if they were not awaited.
        """
        self._log.append(("answered", request, blocks))
        left = self._pulls.get(request, set())
        if not left.issuperset(blocks):
            self._fail(request, f"values of blocks {_missing(blocks, left)} came but are not awaited")
        left.difference_update(blocks)
        if left:
            return False
        del self._pulls[request]
        return True

    def applied(self, request: int, num_blocks: int) -> bool:
        """Blocks of a push are applied; returns whether all are.

        Raises:
            ClientError: if so many were not awaited.
        """
        self._log.append(("applied", request, num_blocks))
        left = self._pushes.get(request, 0) - num_blocks
        if left < 0:
            self._fail(request, f"{num_blocks} blocks are acknowledged, {left + num_blocks} are awaited")
        self._pushes[request] = left
        if left:
            return False
        del self._pushes[request]
        return True

    def _fail(self, request: int, problem: str) -> NoReturn:
        subject = f"request {request}"
        raise ClientError(problem, subject, self._log.of(subject), self._log.events)


def _missing(blocks: Iterable[int], left: set[int]) -> list[int]:
    return sorted(set(blocks) - left)
