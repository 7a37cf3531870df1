"""Memory for messages: reused, so that its pages stay mapped, and counted against a limit.

What a worker keeps of the tables counts against the same limit.
"""

from __future__ import annotations

import math
from collections import defaultdict, deque
from collections.abc import Callable
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from hpcbal.errors import InputError
from hpcbal.paramserver.engine.wire import Frame
from hpcbal.policies.grouping.memory import RESERVE

SMALLEST = 4096
"""Bytes; smaller buffers take as much."""

KEPT_SHARE = 0.5
"""Share of the limit: free buffers beyond it go back to the operating system."""


class MemoryLimitError(InputError):
    """An executor needs more than `memory_per_rank`, or jobs more than `memory_per_node`."""


class Relief(Protocol):
    """Gives memory of a machine back, see `spilling.planning.MachineSpill`."""

    def relieve(self, num_bytes: int) -> None: ...


class MachineMemory:
    """The memory of a machine that executors of several jobs share.

    Args:
        limit_bytes: of what they hold together; None: no limit.

    Attributes:
        most_bytes: the most that they have held at a time.
        lately_bytes: the same since somebody has last set it to 0.
        relief: gives bytes of blocks back; None: nobody can.
    """

    def __init__(self, limit_bytes: int | None = None) -> None:
        self.limit_bytes = limit_bytes
        self.most_bytes = self.lately_bytes = 0
        self.relief: Relief | None = None
        self._members: list[Buffers] = []

    @property
    def num_bytes(self) -> int:
        """Bytes of all that executors hold."""
        return sum(each.num_bytes for each in self._members)

    def make_room(self, num_bytes: int) -> bool:
        """Let so many bytes become free; returns whether they are."""
        if self.limit_bytes is None:
            return True
        if self.relief is None:
            return self.num_bytes + num_bytes <= self.limit_bytes
        aim = (1 - RESERVE) * self.limit_bytes
        if (missing := self.num_bytes + num_bytes - aim) > 0:
            self.relief.relieve(math.ceil(missing))
        return self.num_bytes + num_bytes <= aim

    def make_room_at_last(self, num_bytes: int) -> None:
        """The same for a message, which may use the reserve: blocks give way only beyond the limit itself."""
        if self.limit_bytes is None or self.relief is None:
            return
        if self.num_bytes + num_bytes > self.limit_bytes:
            self.make_room(num_bytes)

    def open(self) -> Buffers:
        """Return the buffers of one more executor, which are closed when it leaves."""
        self._members.append(Buffers(self.limit_bytes, self))
        return self._members[-1]

    def close(self, buffers: Buffers) -> None:
        """An executor leaves."""
        self._members.remove(buffers)

    def held_by_others(self, buffers: Buffers) -> int:
        """Bytes of the blocks of other executors."""
        return sum(each.held_bytes for each in self._members if each is not buffers)

    def taken_by_others(self, buffers: Buffers) -> int:
        """Bytes of other executors, with their buffers, rows and updates."""
        return sum(each.num_bytes for each in self._members if each is not buffers)

    def note(self) -> None:
        """Some executor holds more than before."""
        now = self.num_bytes
        self.most_bytes, self.lately_bytes = max(self.most_bytes, now), max(self.lately_bytes, now)


class Buffers:
    """Buffers of one executor.

    Args:
        limit_bytes: of all that the executor holds; None: no limit.
        machine: where other executors use the same memory; None: this one has it for itself.

    Attributes:
        held_bytes: of blocks and dense tables.
        used_bytes: of the buffers in use.
        kept_bytes: of rows and updates that a worker keeps in arrays of its own, see `keep`.
        most_bytes: the most of used and kept bytes at a time.
    """

    def __init__(self, limit_bytes: int | None = None, machine: MachineMemory | None = None) -> None:
        self._limit, self._machine = limit_bytes, machine
        self._free: dict[int, list[NDArray[np.uint8]]] = defaultdict(list)
        self._free_bytes = 0
        self.held_bytes = 0
        self.used_bytes = 0
        self.kept_bytes = 0
        self.most_bytes = 0

    @property
    def num_bytes(self) -> int:
        """Bytes of all that the executor holds."""
        return self.held_bytes + self.used_bytes + self.kept_bytes

    def close(self) -> None:
        """The executor leaves its machine."""
        if self._machine is not None:
            self._machine.close(self)

    def hold(self, num_bytes: int) -> None:
        """Leave to messages what blocks and dense tables do not take."""
        self.held_bytes = num_bytes
        self._note_most()

    def check(self, rank: int) -> None:
        """Check what is held, after others have given up what they can.

        Raises:
            MemoryLimitError: it exceeds the limit.
        """
        if self._limit is None:
            return
        if self._machine is not None:
            self._machine.make_room(0)
        others = 0 if self._machine is None else self._machine.held_by_others(self)
        if self._machine is None and self.held_bytes > self._limit:
            raise MemoryLimitError(
                f"memory_per_rank: rank {rank} got {self._limit:,} bytes, but its blocks take "
                f"{self.held_bytes:,}; use more executors, or allow more memory"
            )
        if self.held_bytes + others > self._limit:
            raise MemoryLimitError(
                f"memory_per_node: machine {rank} got {self._limit:,} bytes, but the blocks of this job take "
                f"{self.held_bytes:,} and those of other jobs {others:,}; allow more memory, or use more "
                "machines"
            )

    def make_room(self, num_bytes: int) -> None:
        """So many bytes are about to be held: others on this machine give up what they can."""
        if self._machine is not None:
            self._machine.make_room(num_bytes)

    def has_room(self, num_bytes: int) -> bool:
        """Whether a buffer fits below the limit, beside what is kept.

        A buffer fits whenever no other is in use. Otherwise two workers that serve each other could wait for
        each other, each with rows that it drops only when its push has been received.
        """
        return not self.used_bytes or self.fits(num_bytes)

    def fits(self, num_bytes: int) -> bool:
        """Whether a buffer stays below the limit, beside all that is held, used and kept."""
        if self._limit is None:
            return True
        others = 0 if self._machine is None else self._machine.taken_by_others(self)
        return self.num_bytes + num_bytes + others <= self._limit

    def keep(self, num_bytes: int) -> None:
        """Count so many bytes that a worker keeps, until `drop`.

        Raises:
            MemoryLimitError: all that is kept does not fit below the limit. Nothing is counted then.
        """
        kept = self.kept_bytes + num_bytes
        if self._machine is not None:
            self._machine.make_room(num_bytes)
        if self._limit is not None and kept > self._left(self._limit):
            raise MemoryLimitError(self._too_much(kept, self._left(self._limit)))
        self.kept_bytes += num_bytes
        self._note_most()

    def _left(self, limit: int) -> int:
        """Return the bytes that blocks leave free, those of other jobs too."""
        others = 0 if self._machine is None else self._machine.held_by_others(self)
        return max(0, limit - self.held_bytes - others)

    def _too_much(self, kept: int, left: int) -> str:
        if self._machine is None:
            return (
                f"memory_per_rank: a turn keeps {kept:,} bytes of rows and updates, but blocks and dense "
                f"tables leave {left:,}; lower mini_batch, use more executors, or allow more memory"
            )
        return (
            f"memory_per_node: a turn keeps {kept:,} bytes of rows and updates, but blocks and dense tables "
            f"of all jobs leave {left:,}; lower mini_batch, use more machines, or allow more memory"
        )

    def drop(self, num_bytes: int) -> None:
        """So many bytes that `keep` has counted are no longer kept."""
        self.kept_bytes -= num_bytes

    def take(self, num_bytes: int) -> NDArray[np.uint8]:
        """A buffer of at least `num_bytes`, aligned for any type; its contents are arbitrary.

        The limit is the caller's to keep, see `has_room`: who must not wait may exceed it. On a machine that
        spills, blocks then go to disk first.
        """
        size = _rounded(num_bytes)
        if self._machine is not None:
            self._machine.make_room_at_last(size)
        self.used_bytes += size
        self._note_most()
        free = self._free[size]
        if free:
            self._free_bytes -= size
            return free.pop()
        return np.empty(size, np.uint8)

    def give(self, buffer: NDArray[np.uint8]) -> None:
        """Return a buffer that `take` has handed out."""
        self.used_bytes -= buffer.nbytes
        most = None if self._limit is None else KEPT_SHARE * self._left(self._limit)
        if most is None or self._free_bytes + buffer.nbytes <= most:
            self._free[buffer.nbytes].append(buffer)
            self._free_bytes += buffer.nbytes

    def _note_most(self) -> None:
        self.most_bytes = max(self.most_bytes, self.used_bytes + self.kept_bytes)
        if self._machine is not None:
            self._machine.note()


class PushRoom:
    """Admits the pushes to one server, in the order in which they come.

    Their payloads stay at the senders while the buffers are full.

    Args:
        buffers: for payloads, also used by others.
        receive: receives the payload of a push into a buffer, which goes back to the room afterwards.
    """

    def __init__(self, buffers: Buffers, receive: Callable[[Frame, NDArray[np.uint8]], None]) -> None:
        self.buffers, self._receive = buffers, receive
        self._waiting: deque[Frame] = deque()

    @property
    def is_idle(self) -> bool:
        """Whether no push waits for room."""
        return not self._waiting

    def admit(self, frame: Frame) -> None:
        """Receive a push, now or as soon as there is room."""
        if self._waiting or not self.buffers.has_room(frame.payload_bytes):
            # Later ones wait too: the payloads of a source come in the order of their headers.
            self._waiting.append(frame)
            return
        self.admit_now(frame)

    def admit_now(self, frame: Frame) -> None:
        """Receive a push that must not wait."""
        self._receive(frame, self.buffers.take(frame.payload_bytes))

    def give(self, buffer: NDArray[np.uint8]) -> None:
        """A buffer is no longer needed, whatever it held; receive the pushes that waited for its room."""
        self.buffers.give(buffer)
        while self._waiting and self.buffers.has_room(self._waiting[0].payload_bytes):
            self.admit_now(self._waiting.popleft())


def view(
    buffer: NDArray[np.uint8], start: int, shape: tuple[int, ...], dtype: str | np.dtype[Any]
) -> NDArray[Any]:
    """An array that lies in a buffer from the byte `start` on."""
    return np.ndarray(shape, dtype, buffer.data, start)


def _rounded(num_bytes: int) -> int:
    """The next size with one of four mantissas, so that unequal requests share buffers."""
    if num_bytes <= SMALLEST:
        return SMALLEST
    step = 1 << max(0, (num_bytes - 1).bit_length() - 3)
    return -(-num_bytes // step) * step
