"""The decisions of a rank that hosts parameter blocks: what is answered, applied, kept waiting or forwarded.

Blocks are independent of each other. Three rules hold for each:

- *Exactly once.* Pushes of a worker to a block are numbered 1, 2, ... and applied in this order. A pull
  carries the number of its worker's last push and is answered when that has been applied.
- *Lent.* A block whose values are being sent is not changed. It may be sent to several workers at once.
- *One owner.* When a block moves, its ownership goes first: the new owner learns of it before it sees any
  access that the old one forwards, and keeps all of them until the values are there.

Accesses may come to any rank that has owned the block. Each forwards them to the rank that it gave the block
to, so they follow the block's own path. They never run in a circle: if the block comes back to a rank, news
of that overtakes them. This needs channels between ranks that keep their order, and nothing else. Workers may
learn of owners as late as they like.

Source: [PS] Sec. 3.3.2. Deviation: the old owner reports to the master when the values have arrived.
"""

from __future__ import annotations

from collections import Counter, defaultdict, deque
from collections.abc import Mapping, Sequence
from operator import ge, sub
from typing import Any, Generic, NamedTuple, NoReturn, TypeVar

from hpcbal.events.event_log import EventLog, MachineError

A = TypeVar("A")
"""An access: whatever the engine keeps of a pull or push."""


class BlockAccess(NamedTuple, Generic[A]):
    """One block of a pull or push.

    Attributes:
        number: pull: of the worker's last push; push: its own.
        lends: of a pull; None: it is a push.
    """

    access: A
    worker: int
    block: int
    number: int
    lends: bool | None


class Answer(NamedTuple, Generic[A]):
    """Send a pull's worker the values of these blocks.

    If the pull lends, call `Host.sent` when the values have been read.
    """

    access: A
    blocks: Sequence[int]


class Apply(NamedTuple, Generic[A]):
    """Change these blocks by what was pushed, now, and acknowledge them to the push's worker."""

    access: A
    blocks: Sequence[int]


class Skip(NamedTuple, Generic[A]):
    """Drop what was pushed to these blocks: it came twice, and has been applied and acknowledged."""

    access: A
    blocks: Sequence[int]


class Forward(NamedTuple, Generic[A]):
    """Send these blocks' part of an access to another rank, which owns them or knows more."""

    access: A
    blocks: Sequence[int]
    destination: int


class Give(NamedTuple):
    """Send a block to its new owner: the news first, then the values with `applied`.

    Its values are not changed here any more. Forwards follow; they must not overtake the news.

    Attributes:
        applied: by worker, the number of its last push that is in the values.
    """

    block: int
    destination: int
    applied: Mapping[int, int]


class Took(NamedTuple):
    """Let the rank that gave a block know that it is here."""

    block: int
    source: int


class Moved(NamedTuple):
    """Report to the master that a block has a new owner."""

    block: int
    destination: int


Action = Answer[A] | Apply[A] | Skip[A] | Forward[A] | Give | Took | Moved


def add_action(actions: list[Action[A]], action: Answer[A] | Apply[A] | Skip[A] | Forward[A]) -> None:
    """Add an action for one block; blocks of an access that need the same share one action."""
    last = actions[-1] if actions else None
    if (
        isinstance(last, Answer | Apply | Skip | Forward)
        and type(last) is type(action)
        and last.access is action.access
        and last[2:] == action[2:]
        and isinstance(last.blocks, list)
    ):
        last.blocks.extend(action.blocks)
        return
    actions.append(action)


MAX_EVENTS = 200
NUM_SHOWN_PER_BLOCK = 10

Event = tuple[str, Sequence[int], Any]
"""The kind of an event, its blocks, and details. Accesses are not kept: they may hold arrays."""


class HostError(MachineError):
    """A host got an event that cannot happen in its state."""

    machine = "host of parameter blocks"


class Host(Generic[A]):
    """The parameter blocks of one rank. It does no IO, and no array passes through it.

    Every method takes an event and returns actions. The caller performs them in order, and hands in events
    that follow from one action after the last one has been performed.

    Args:
        rank: this rank.
    """

    def __init__(self, rank: int) -> None:
        self.rank = rank
        self._here: set[int] = set()
        self._numbers: defaultdict[int, Counter[int]] = defaultdict(Counter)  # see `applied`, by worker
        self._coming: dict[int, int | None] = {}  # block -> who gives it; None: it begins here
        self._gone: dict[int, int] = {}  # block -> who got it last
        self._leaving: list[tuple[int, int]] = []  # block and who gets it; not yet acknowledged
        self._next_move: dict[int, int] = {}  # coming block -> where it goes next
        self._lent: Counter[int] = Counter()  # how often each block is
        self._waiting: dict[int, deque[BlockAccess[A]]] = {}  # by block
        self._has_begun = False
        self._log: EventLog[Event] = EventLog(MAX_EVENTS, lambda event: None)

    # What is here.

    @property
    def blocks(self) -> list[int]:
        """Blocks whose values are here, ascending."""
        return sorted(self._here)

    @property
    def awaited(self) -> list[int]:
        """Blocks that are to come and have no order to move on, ascending."""
        return sorted(self._coming.keys() - self._next_move.keys())

    def has(self, block: int) -> bool:
        """Whether the values of a block are here."""
        return block in self._here

    def applied(self, block: int) -> Mapping[int, int]:
        """By worker, the number of its last push that is in the values of a block that is here."""
        return {worker: numbers[block] for worker, numbers in self._numbers.items() if block in numbers}

    @property
    def is_lending(self) -> bool:
        """Whether any block is lent."""
        return bool(self._lent)

    @property
    def is_idle(self) -> bool:
        """Whether nothing waits, and no block is lent, awaited or unacknowledged."""
        return not (self._waiting or self._lent or self._coming or self._leaving)

    # Accesses.

    def pull(
        self, access: A, worker: int, blocks: Sequence[int], numbers: Sequence[int], lends: bool = True
    ) -> list[Action[A]]:
        """A pull has come, from its worker or forwarded.

        Args:
            access: names it in actions.
            blocks: each once.
            numbers: of the worker's last push to each.
            lends: whether the answer is sent from where the values lie, so that they must not change until
                `sent`; False: the engine copies them when it performs `Answer`.
        """
        self._log.append(("pull", blocks, (worker, numbers)))
        applied = self._numbers[worker]
        if self._here.issuperset(blocks) and all(map(ge, map(applied.__getitem__, blocks), numbers)):
            if lends:
                self._lent.update(blocks)
            return [Answer(access, blocks)]
        actions: list[Action[A]] = []
        for block, number in zip(blocks, numbers, strict=True):
            self._handle(BlockAccess(access, worker, block, number, lends), actions)
        return actions

    def push(self, access: A, worker: int, blocks: Sequence[int], numbers: Sequence[int]) -> list[Action[A]]:
        """A push has come with all its values, from its worker or forwarded.

        Args:
            access: names it in actions.
            blocks: each once.
            numbers: of this push, at each.
        """
        self._log.append(("push", blocks, (worker, numbers)))
        applied = self._numbers[worker]
        if (
            self._here.issuperset(blocks)
            and self._are_free(blocks)
            and set(map(sub, numbers, map(applied.__getitem__, blocks))) == {1}
        ):
            for block, number in zip(blocks, numbers, strict=True):
                applied[block] = number
            return [Apply(access, blocks)]
        actions: list[Action[A]] = []
        for block, number in zip(blocks, numbers, strict=True):
            self._handle(BlockAccess(access, worker, block, number, None), actions)
        self._retry(blocks, actions)
        return actions

    def _are_free(self, blocks: Sequence[int]) -> bool:
        """Whether none of these blocks is lent, and no access waits for any of them."""
        is_awaited = self._waiting and not self._waiting.keys().isdisjoint(blocks)
        return not is_awaited and (not self._lent or self._lent.keys().isdisjoint(blocks))

    def sent(self, blocks: Sequence[int]) -> list[Action[A]]:
        """An answer that lent blocks has been sent.

        Args:
            blocks: all of the `Answer`.

        Raises:
            HostError: if they are not lent.
        """
        self._log.append(("sent", blocks, None))
        for block in blocks:
            if not self._lent[block]:
                self._fail(f"block {block} is returned but not lent", block)
            self._lent[block] -= 1
            if not self._lent[block]:
                del self._lent[block]
        actions: list[Action[A]] = []
        self._retry(blocks, actions)
        return actions

    # Blocks that come and go.

    def begin(self, blocks: Sequence[int]) -> list[Action[A]]:
        """The job begins, and these blocks begin here; `arrived` follows for each.

        Until then accesses to any block wait: a worker may have begun sooner.

        Raises:
            HostError: if the job has begun already, or accesses wait for a block that does not begin here.
        """
        self._log.append(("begin", blocks, None))
        if self._has_begun:
            self._fail("the job begins twice")
        self._has_begun = True
        self._coming.update(dict.fromkeys(blocks))
        for block in self._waiting:
            if block not in self._coming and block not in self._here:
                self._fail(f"a worker takes rank {self.rank} for the owner of block {block}", block)
        return []

    def expect(self, block: int, source: int) -> list[Action[A]]:
        """News has come that `source` gives a block to this rank.

        Raises:
            HostError: if it is here, or awaited.
        """
        self._log.append(("expect", (block,), source))
        if block in self._here or block in self._coming:
            self._fail(f"rank {source} gives block {block}, which is not its own", block)
        self._gone.pop(block, None)
        self._coming[block] = source
        return []

    def arrived(self, block: int, applied: Mapping[int, int] | None = None) -> list[Action[A]]:
        """The values of an awaited block are here.

        Args:
            applied: by worker, the number of its last push that is in the values; None: no push is.

        Raises:
            HostError: if the block is not awaited.
        """
        self._log.append(("arrived", (block,), applied))
        if block not in self._coming:
            self._fail(f"block {block} arrives but is not awaited", block)
        actions: list[Action[A]] = []
        source = self._coming.pop(block)
        self._here.add(block)
        for worker, number in (applied or {}).items():
            self._numbers[worker][block] = number
        if source is not None:
            actions.append(Took(block, source))
        self._retry([block], actions)
        if block in self._next_move:
            self._give(block, self._next_move.pop(block), actions)
        return actions

    def move(self, blocks: Sequence[int], destination: int) -> list[Action[A]]:
        """The master orders that blocks move. A block that is still awaited moves on when it has arrived.

        Raises:
            HostError: if a block is neither here nor awaited, is awaited and has such an order already, or
                would move to this rank.
        """
        self._log.append(("move", blocks, destination))
        actions: list[Action[A]] = []
        for block in blocks:
            if destination == self.rank:
                self._fail(f"block {block} is to move from rank {destination} to itself", block)
            if block in self._here:
                self._give(block, destination, actions)
            elif block in self._coming and block not in self._next_move:
                self._next_move[block] = destination
            else:
                owner = self._next_move.get(block, self._gone.get(block))
                self._fail(f"block {block} is to move to {destination}, but rank {owner} has got it", block)
        return actions

    def taken(self, block: int, destination: int) -> list[Action[A]]:
        """The rank to which a block was given has its values.

        Raises:
            HostError: if the block is not on its way there.
        """
        self._log.append(("taken", (block,), destination))
        if (block, destination) not in self._leaving:
            self._fail(f"rank {destination} has taken block {block}, which it was not given", block)
        self._leaving.remove((block, destination))
        return [Moved(block, destination)]

    def check(self) -> None:
        """Check what always holds.

        Raises:
            HostError: if it does not.
        """
        coming, gone = self._coming.keys(), self._gone.keys()
        for block in (self._here & coming) | (self._here & gone) | (coming & gone):
            self._fail(f"block {block} is in two states", block)
        for block, waiting in self._waiting.items():
            if not waiting or block in self._gone:
                self._fail(f"block {block} keeps accesses for no reason", block)
            ready = [each for each in waiting if block in self._here and self._is_ready(each)]
            if ready:
                self._fail(f"block {block} keeps {ready[0]} waiting, which is ready", block)

    # How.

    def _handle(self, access: BlockAccess[A], actions: list[Action[A]]) -> None:
        """Handle one block of an access that has just come."""
        if not self._try(access, actions):
            self._waiting.setdefault(access.block, deque()).append(access)

    def _try(self, access: BlockAccess[A], actions: list[Action[A]]) -> bool:
        """Handle one block of an access, unless it must wait."""
        name, worker, block, number, lends = access
        if block not in self._here:
            if block in self._gone:
                add_action(actions, Forward(name, [block], self._gone[block]))
                return True
            if self._has_begun and block not in self._coming:
                self._fail(f"worker {worker} takes rank {self.rank} for the owner of block {block}", block)
            return False
        if not self._is_ready(access):
            return False
        if lends is not None:
            if lends:
                self._lent[block] += 1
            add_action(actions, Answer(name, [block]))
        elif number <= self._numbers[worker][block]:
            add_action(actions, Skip(name, [block]))
        else:
            self._numbers[worker][block] = number
            add_action(actions, Apply(name, [block]))
        return True

    def _is_ready(self, access: BlockAccess[A]) -> bool:
        """Whether a block that is here can be answered or changed."""
        last = self._numbers[access.worker][access.block]
        if access.lends is not None:
            return last >= access.number
        return access.number <= last or (access.number == last + 1 and access.block not in self._lent)

    def _retry(self, blocks: Sequence[int], actions: list[Action[A]]) -> None:
        """Handle what waits for blocks, as far as possible; for each block in the order in which it came.

        One access of each block after the other, so that those of a pull or push share one action.
        """
        left = [block for block in blocks if block in self._waiting] if self._waiting else []
        while left:
            left = [block for block in left if self._retry_one(block, actions)]

    def _retry_one(self, block: int, actions: list[Action[A]]) -> bool:
        """Handle the first access to a block that need not wait; returns whether others may follow."""
        waiting = self._waiting[block]
        for index, access in enumerate(waiting):
            if self._try(access, actions):
                del waiting[index]
                if not waiting:
                    del self._waiting[block]
                return bool(waiting)
        return False

    def _give(self, block: int, destination: int, actions: list[Action[A]]) -> None:
        self._here.remove(block)
        applied = self.applied(block)
        for worker in applied:
            del self._numbers[worker][block]
        self._gone[block] = destination
        self._leaving.append((block, destination))
        actions.append(Give(block, destination, applied))
        self._retry([block], actions)

    def _fail(self, problem: str, block: int | None = None) -> NoReturn:
        events = self._log.events
        of_block = [event for event in events if block in event[1]][-NUM_SHOWN_PER_BLOCK:]
        raise HostError(problem, "" if block is None else f"block {block}", of_block, events)


SLOW_BYTES_PER_S = 500e6
"""Copying is about twenty times as fast, so it adds little to an answer that takes longer than this."""

UNNOTICED_S = 1e-3
"""Beside the bytes: what a rank may take to notice an answer."""


class Lending:
    """A server's knowledge of how its workers take answers.

    Args:
        may_copy: whether answers may be copied at all; False where steps have a barrier.
    """

    def __init__(self, may_copy: bool) -> None:
        self.may_copy = may_copy
        self._slow: set[int] = set()

    def copies(self, worker: int) -> bool:
        """Whether the next answer to a worker is to be a copy, if there is memory for it."""
        return worker in self._slow

    def taken(self, worker: int, num_bytes: int, seconds: float) -> None:
        """A worker has taken an answer, lent or copied.

        Args:
            num_bytes: of its values, >= 0.
            seconds: from when it was sent until its values were no longer read, >= 0.
        """
        if self.may_copy and seconds > UNNOTICED_S + num_bytes / SLOW_BYTES_PER_S:
            self._slow.add(worker)
        else:
            self._slow.discard(worker)
