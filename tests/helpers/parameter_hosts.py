"""Hosts and clients of parameter blocks on a network that delivers in any order that its channels allow."""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np

from hpcbal.paramserver.store.client import Client
from hpcbal.paramserver.store.layout import Ownership
from hpcbal.paramserver.store.server import Action, Answer, Apply, Forward, Give, Host, Moved, Skip, Took

Token = tuple[int, int]
"""An update: the worker that pushed it, and its number at the block."""

MAX_OPEN = 5
"""Pulls and pushes of a worker that are on their way."""


@dataclass(eq=False)
class Access:
    """A pull, or a push if `lends` is None."""

    worker: int
    request: int
    numbers: dict[int, int]
    lends: bool | None

    def part(self, blocks: Sequence[int]) -> Access:
        return Access(self.worker, self.request, {b: self.numbers[b] for b in blocks}, self.lends)


@dataclass(eq=False)
class Rank:
    """One rank's part. The values of a block are the updates that were applied to it, in order."""

    host: Host[Access]
    client: Client
    values: dict[int, list[Token]] = field(default_factory=dict)
    actions: deque[Action[Access]] = field(default_factory=deque)
    has_begun: bool = False
    asked: dict[int, dict[int, int]] = field(default_factory=dict)


class Network:
    """Ranks 0..n-1, each a host and a client, and all that is between them.

    A message is a header and maybe a payload. Headers between two ranks keep their order, and so do payloads
    of one lane; a push or a block is handled when its payload has come, too.

    Args:
        num_ranks, num_blocks: at least 1.
        host: the machine to test.
    """

    def __init__(self, num_ranks: int, num_blocks: int, host: type[Host[Access]] = Host) -> None:
        owners = [block % num_ranks for block in range(num_blocks)]
        self.num_blocks = num_blocks
        self.first_owners = owners
        self.ranks = [
            Rank(host(rank), Client(rank, Ownership(owners), max_blocks=3)) for rank in range(num_ranks)
        ]
        self.headers: dict[tuple[int, int], deque[Callable[[], None]]] = {}
        self.payloads: dict[tuple[int, int, str], deque[Callable[[], None]]] = {}
        self.sends: list[Callable[[], None]] = []
        self.in_transit: set[int] = set()
        self.num_pushed = [[0] * num_blocks for _ in range(num_ranks)]
        self.num_moves = self.num_forwards = self.num_skips = self.num_answers = 0

    # Time goes on.

    def step(self, choice: int) -> None:
        """Let one thing happen."""
        rng = random.Random(choice)
        steps = self._deliveries() + self._beginnings()
        for rank in range(len(self.ranks)):
            client = self.ranks[rank].client
            if client.num_pulls + client.num_pushes < MAX_OPEN:
                steps += [lambda rank=rank: self._pull(rank, rng), lambda rank=rank: self._push(rank, rng)]
            if rng.random() < 0.3:
                steps.append(lambda rank=rank: self._move(rank, rng))
        if steps:
            rng.choice(steps)()
        self.check()

    def drain(self, choice: int = 0) -> None:
        """Deliver everything, and check that nothing is left and nothing was lost."""
        rng = random.Random(choice)
        while steps := self._deliveries() + self._beginnings():
            rng.choice(steps)()
            self.check()
        for rank in self.ranks:
            assert rank.host.is_idle, "a host waits for ever"
            assert rank.client.num_pulls == 0, "a pull is lost"
            assert rank.client.num_pushes == 0, "a push is lost"
        for block in range(self.num_blocks):
            (values,) = [rank.values[block] for rank in self.ranks if rank.host.has(block)]
            expected = {(w, n + 1) for w, row in enumerate(self.num_pushed) for n in range(row[block])}
            assert len(values) == len(expected), "an update is lost, or applied twice"
            assert set(values) == expected

    def check(self) -> None:
        """One owner of each block, or it is on its way."""
        for block in range(self.num_blocks):
            owners = [rank.host.rank for rank in self.ranks if rank.host.has(block)]
            is_unborn = not self.ranks[self.first_owners[block]].has_begun
            assert len(owners) + (block in self.in_transit) + is_unborn == 1, (block, owners)
        for rank in self.ranks:
            rank.host.check()

    def _deliveries(self) -> list[Callable[[], None]]:
        queues = [*self.headers.values(), *self.payloads.values()]
        steps: list[Callable[[], None]] = [lambda q=queue: q.popleft()() for queue in queues if queue]
        return steps + [lambda i=i: self.sends.pop(i)() for i in range(len(self.sends))]

    def _beginnings(self) -> list[Callable[[], None]]:
        return [
            lambda rank=rank: self._begin(rank) for rank, each in enumerate(self.ranks) if not each.has_begun
        ]

    def _header(self, source: int, destination: int, handle: Callable[[], None]) -> None:
        self.headers.setdefault((source, destination), deque()).append(handle)

    def _with_payload(self, source: int, destination: int, lane: str, handle: Callable[[], None]) -> None:
        queue = self.payloads.setdefault((source, destination, lane), deque())
        self._header(source, destination, lambda: queue.append(handle))

    # What ranks do of themselves.

    def _begin(self, rank: int) -> None:
        here = self.ranks[rank]
        here.has_begun = True
        blocks = [block for block, owner in enumerate(self.first_owners) if owner == rank]
        self._perform(rank, here.host.begin(blocks))
        for block in blocks:
            here.values[block] = []
            self._perform(rank, here.host.arrived(block))

    def _some_blocks(self, rng: random.Random) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
        return np.array(sorted(rng.sample(range(self.num_blocks), rng.randint(1, self.num_blocks))), np.int64)

    def _pull(self, worker: int, rng: random.Random) -> None:
        lends = rng.random() < 0.7
        wanted, client = self._some_blocks(rng), self.ranks[worker].client
        request = client.pull(len(wanted))
        self.ranks[worker].asked[request] = {}
        for owner, blocks, numbers in client.parts(wanted):
            of_blocks = dict(zip(blocks.tolist(), numbers.tolist(), strict=True))
            self.ranks[worker].asked[request] |= of_blocks
            self._send_access(worker, owner, Access(worker, request, of_blocks, lends))

    def _push(self, worker: int, rng: random.Random) -> None:
        blocks = self._some_blocks(rng)
        client = self.ranks[worker].client
        request = client.push(blocks)
        for block in blocks.tolist():
            self.num_pushed[worker][block] += 1
        for owner, own, numbers in client.parts(blocks):
            of_blocks = dict(zip(own.tolist(), numbers.tolist(), strict=True))
            access = Access(worker, request, of_blocks, None)
            self._send_access(worker, owner, access)
            if rng.random() < 0.1:
                self._send_access(worker, owner, access.part(own.tolist()))  # once more

    def _move(self, rank: int, rng: random.Random) -> None:
        host = self.ranks[rank].host
        blocks = [b for b in range(self.num_blocks) if host.has(b)] + host.awaited
        others = [other for other in range(len(self.ranks)) if other != rank]
        if blocks and others:
            self._perform(rank, host.move([rng.choice(blocks)], rng.choice(others)))

    # What hosts ask for.

    def _send_access(self, source: int, destination: int, access: Access, lane: str = "push") -> None:
        host = self.ranks[destination].host
        blocks, numbers = list(access.numbers), list(access.numbers.values())

        def push() -> None:
            self._perform(destination, host.push(access, access.worker, blocks, numbers))

        def pull() -> None:
            self._perform(destination, host.pull(access, access.worker, blocks, numbers, bool(access.lends)))

        if access.lends is None:
            self._with_payload(source, destination, lane, push)
        elif access.lends:
            self._header(source, destination, pull)
        else:
            self._with_payload(source, destination, "rows", pull)

    def _perform(self, rank: int, actions: list[Action[Access]]) -> None:
        """Perform actions in order; what follows from one is performed after the last."""
        queue = self.ranks[rank].actions
        is_busy = bool(queue)
        queue.extend(actions)
        if is_busy:
            return
        while queue:
            self._perform_one(rank, queue[0])
            queue.popleft()

    def _perform_one(self, rank: int, action: Action[Access]) -> None:
        here = self.ranks[rank]
        match action:
            case Answer(access, blocks):
                self._answer(rank, access, blocks)
            case Apply(access, blocks):
                for block in blocks:
                    here.values[block].append((access.worker, access.numbers[block]))
                count, worker = len(blocks), access.worker
                self._header(rank, worker, lambda: self._applied(worker, access.request, count))
            case Skip():
                self.num_skips += 1
            case Forward(access, blocks, destination):
                self.num_forwards += 1
                self._send_access(rank, destination, access.part(blocks), "moved")
            case Give(block, destination, applied):
                self._give(rank, block, destination, dict(applied))
            case Took(block, source):
                giver = self.ranks[source].host
                self._header(rank, source, lambda: self._perform(source, giver.taken(block, rank)))
            case Moved(block, destination):
                self.num_moves += 1
                for worker in range(len(self.ranks)):  # news may come late, and in any order
                    ownership = self.ranks[worker].client.ownership
                    self._header(rank, worker, lambda o=ownership: o.change([block], destination))

    def _answer(self, rank: int, access: Access, blocks: Sequence[int]) -> None:
        here, worker = self.ranks[rank], access.worker
        arrays = {block: here.values[block] for block in blocks}
        copies = {block: list(values) for block, values in arrays.items()}

        def sent() -> None:
            assert not access.lends or arrays == copies, "values changed while they were sent"
            self._header(rank, worker, lambda: self._answered(worker, access.request, copies))
            if access.lends:
                self._perform(rank, here.host.sent(blocks))

        self.sends.append(sent)

    def _give(self, rank: int, block: int, destination: int, applied: dict[int, int]) -> None:
        values, host = self.ranks[rank].values.pop(block), self.ranks[destination].host
        copy = list(values)
        self.in_transit.add(block)

        def arrived() -> None:
            assert values == copy, "values changed after the block was given away"
            self.in_transit.discard(block)
            self.ranks[destination].values[block] = list(copy)
            self._perform(destination, host.arrived(block, applied))

        queue = self.payloads.setdefault((rank, destination, "moved"), deque())

        def news() -> None:
            self._perform(destination, host.expect(block, rank))
            queue.append(arrived)

        self._header(rank, destination, news)

    def _answered(self, worker: int, request: int, values: dict[int, list[Token]]) -> None:
        here = self.ranks[worker]
        for block, tokens in values.items():
            own = sum(1 for token in tokens if token[0] == worker)
            assert own >= here.asked[request][block], "a worker does not see its own update"
        for block in values:
            del here.asked[request][block]  # comes once
        here.client.answered(request, len(values))
        self.num_answers += 1

    def _applied(self, worker: int, request: int, num_blocks: int) -> None:
        self.ranks[worker].client.applied(request, num_blocks)
