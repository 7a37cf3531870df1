"""Samples in the caches of other nodes: each is kept by its home node, and the others fetch it from there."""

from __future__ import annotations

import bisect
import itertools
import time
from collections import Counter, deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hpcbal.comm.backoff import Backoff
from hpcbal.comm.channel import Message
from hpcbal.comm.group_comm import Piece, PieceExchange
from hpcbal.dataplane.cache import MOST_WAIT_S, EntryLayout, SampleCache
from hpcbal.dataplane.cell import aligned

PIECE_BYTES = 2**22
"""Samples of about this size are asked for at once: a preprocessor packs them in a millisecond or two."""

ASK_AGAIN_S = 2e-3
"""How long to wait until asking again for a sample that its home is making."""

POLL_INTERVAL_S = 1e-4
"""A rank that waits looks for pieces at most this often."""

TRY_EVERY = 16
"""If making samples is faster than fetching them, one of so many batches is fetched to measure that again."""

NUM_MEASURED = 8
"""Number of measurements before the means count."""

NEWEST = 1 / 16
"""Weight of the newest measurement in the mean cost of a sample, once there are more."""

HERE, MAKE, WAIT, NONE = range(4)
"""Answers of a home about a sample: it follows; make it, and give it; another rank makes it; make it."""

ANSWER, GIFT = range(2)
"""Kinds of pieces."""

Entry = NDArray[np.uint8]
Kept = tuple[NDArray[Any], NDArray[Any]]


@dataclass(frozen=True, slots=True)
class WantSamples(Message):
    """A rank that makes samples -> a preprocessor of another node: send these, or say who makes them."""

    ids: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class GiveSamples(Message):
    """A rank that made samples for another node -> a preprocessor there: a piece with them follows."""


class Homes:
    """Which node keeps which sample: a pure function of the id, and of the sizes of all caches.

    Ids are spread by Knuth's multiplicative hashing, so neighbouring ids have different homes, and each node
    is the home of a share of them as large as its share of the memory.

    Args:
        bytes_of_node: size of each node's cache; 0: it keeps nothing. At least one is not 0.
    """

    _MULTIPLIER = 0x9E3779B97F4A7C15  # 2**64 over the golden ratio
    _MASK = 2**64 - 1

    def __init__(self, bytes_of_node: Sequence[int]) -> None:
        self._ends = list(itertools.accumulate(bytes_of_node))
        self._bytes_of_node = tuple(bytes_of_node)

    def of(self, sample_id: int) -> int:
        """The node that is the home of a sample."""
        place = (sample_id * self._MULTIPLIER & self._MASK) * self._ends[-1] >> 64
        return bisect.bisect_right(self._ends, place)

    def share_of(self, node: int) -> float:
        """The share of the samples whose home a node is, 0..1."""
        return self._bytes_of_node[node] / self._ends[-1]


class _Cost:
    """Mean seconds that a sample takes; None until `NUM_MEASURED` times were measured."""

    def __init__(self) -> None:
        self._mean, self._number = 0.0, 0

    @property
    def seconds(self) -> float | None:
        return self._mean if self._number >= NUM_MEASURED else None

    def note(self, seconds: float) -> None:
        self._number += 1
        self._mean += max(1 / self._number, NEWEST) * (seconds - self._mean)


class CacheWithNeighbours:
    """The cache of this node, and behind it those of the other nodes.

    A rank says which samples it needs next (`ask`), and makes meanwhile what nobody else has. A preprocessor
    of the home of a sample answers between its own samples: it sends the sample, or says that nobody has made
    it yet. The rank that makes the sample gives it to its home. So all nodes together decode a sample once,
    and keep as many different samples as fit into all caches. Nothing waits for ever: a sample that does not
    come is made here, with the same bits.

    Whether samples are fetched or made is decided by what each has cost this rank per sample so far, waiting
    included.

    Only one thread of a rank uses this object at a time. All its methods return at once, except for `end`.

    Attributes:
        num_fetched: samples that came from other nodes, so far.

    Args:
        cache: of this node.
        homes: which node keeps what; the same on all ranks.
        node: index of this node.
        servers: the rank of each node that this rank asks, which is a preprocessor.
        makers: all ranks that make samples, in the order of `pieces`.
        pieces: carries samples between these ranks, and nothing else.
        send: sends a message to a rank.
        clock: returns seconds.
    """

    def __init__(
        self,
        cache: SampleCache,
        homes: Homes,
        node: int,
        servers: Sequence[int],
        makers: Sequence[int],
        pieces: PieceExchange,
        send: Callable[[int, Message], None],
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self._cache = cache
        self._homes = homes
        self._node = node
        self._servers = servers
        self._place_of = {rank: place for place, rank in enumerate(makers)}
        self._pieces = pieces
        self._send = send
        self._clock = clock
        self._most_ids = max(1, PIECE_BYTES // cache.entry_bytes)
        self._coming: set[int] = set()
        self._found: dict[int, Kept] = {}
        self._owed: set[int] = set()
        self._to_ask: dict[int, deque[int]] = {}  # by server
        self._being_made: dict[int, int] = {}  # by id, the server to ask again
        self._asked: set[int] = set()  # servers that have not answered yet
        self._expected: Counter[int] = Counter()  # pieces by rank
        self._outbox: dict[int, deque[Piece]] = {}
        self._gifts: dict[int, list[tuple[int, Entry | None]]] = {}  # by server
        self._fetching, self._making = _Cost(), _Cost()
        self._missed = (-1, 0.0)
        self._num_batches = self._num_answered = 0
        self._spent_s = self._news_s = self._asked_again_s = self._progressed_s = 0.0
        self._waits_since_s: float | None = None
        self.num_fetched = 0

    # ---- what a cache does, see `KeptSamples` ------------------------------------------------------

    @property
    def num_hits(self) -> int:
        return self._cache.num_hits + self.num_fetched

    @property
    def is_full(self) -> bool:
        return self._cache.is_full

    def take_warning(self) -> str:
        return self._cache.take_warning()

    def get(self, sample_id: int) -> Kept | None:
        if (kept := self._cache.get(sample_id)) is not None:
            return kept
        kept = self._found.get(sample_id)
        if kept is None:
            self._missed = sample_id, self._clock()
        else:
            self.num_fetched += 1
        return kept

    def copy(self, ids: NDArray[np.int64], samples: NDArray[Any], labels: NDArray[Any]) -> bool:
        return self._cache.copy(ids, samples, labels)

    def put(self, sample_id: int, sample: NDArray[Any], label: NDArray[Any]) -> None:
        missed, since_s = self._missed
        if missed == sample_id:
            self._making.note(self._clock() - since_s)
            self._missed = -1, 0.0
        self._cache.put(sample_id, sample, label)
        if sample_id in self._owed:
            self._give(sample_id, self._cache.layout.packed(sample, label))

    def give_up(self, sample_id: int) -> None:
        self._cache.give_up(sample_id)
        if sample_id in self._owed:
            self._give(sample_id, None)

    def claim(self, sample_id: int) -> bool:
        return sample_id not in self._coming and self._cache.claim(sample_id)

    def is_claimed(self, sample_id: int) -> bool:
        return self.is_coming(sample_id) or (
            sample_id not in self._owed and self._cache.is_claimed(sample_id)
        )

    def is_missing(self, sample_id: int) -> bool:
        """Whether a sample is neither there nor being made, and is not better fetched when it is needed."""
        is_ours = self._homes.of(sample_id) == self._node
        return (is_ours or not self._prefers_fetching) and self._cache.is_missing(sample_id)

    def close(self) -> None:
        """Free the memory; collective over the ranks that make samples, after `end`."""
        self._found.clear()
        self._pieces.close()
        self._cache.close()

    # ---- what this rank needs ----------------------------------------------------------------------

    def ask(self, ids: Iterable[int]) -> None:
        """Begin to fetch samples that other nodes may have; what was asked for before is no longer needed."""
        self.settle()
        self._num_batches += 1
        if not self._prefers_fetching and self._num_batches % TRY_EVERY:
            return
        makes_one = self._making.seconds is None  # to know what that takes
        for sample_id in ids:
            home = self._homes.of(sample_id)
            server = self._servers[home]
            if home == self._node or sample_id in self._coming or self._cache.has(sample_id):
                continue
            if makes_one or server in self._asked:  # it has not answered in time
                makes_one = False
                continue
            self._coming.add(sample_id)
            self._to_ask.setdefault(server, deque()).append(sample_id)
        self._news_s = self._clock()
        self.progress()

    def is_coming(self, sample_id: int) -> bool:
        """Whether a sample may still come from another node."""
        # Also if it does not come from elsewhere: others may wait for what this rank has made.
        if self.has_work and self._clock() - self._progressed_s > POLL_INTERVAL_S:
            self.progress()
        is_coming, now_s = sample_id in self._coming, self._clock()
        # The time until its home has made a sample is no cost of fetching.
        if is_coming and sample_id not in self._being_made:
            self._waits_since_s = now_s if self._waits_since_s is None else self._waits_since_s
        elif self._waits_since_s is not None:
            self._spent_s += now_s - self._waits_since_s
            self._waits_since_s = None
        return is_coming

    def settle(self) -> None:
        """Say that nothing that was asked for is needed any more, and give other nodes what they wait for."""
        if self._num_answered:
            self._fetching.note(self._spent_s / self._num_answered)
        self._spent_s, self._num_answered, self._waits_since_s = 0.0, 0, None
        for sample_id in tuple(self._owed):
            self._give(sample_id, None)
        for each in (self._coming, self._found, self._to_ask, self._being_made):
            each.clear()
        self._send_gifts()

    @property
    def _prefers_fetching(self) -> bool:
        fetching_s, making_s = self._fetching.seconds, self._making.seconds
        return fetching_s is None or making_s is None or fetching_s <= making_s

    def _give(self, sample_id: int, entry: Entry | None) -> None:
        """Give a sample to its home with the next piece; None: it was not made."""
        self._owed.discard(sample_id)
        self._gifts.setdefault(self._servers[self._homes.of(sample_id)], []).append((sample_id, entry))

    # ---- what travels ------------------------------------------------------------------------------

    @property
    def has_work(self) -> bool:
        """Whether pieces are on their way to this rank or from it."""
        return bool(self._outbox or self._gifts or self._coming) or self._expected.total() > 0

    def progress(self) -> None:
        """Take what has come, and send what can be sent."""
        began_s = self._clock()
        for source in [rank for rank, number in self._expected.items() if number]:
            while self._expected[source]:
                piece = self._pieces.receive(self._place_of[source])
                if piece is None:
                    break
                self._expected[source] -= 1
                self._take(source, piece)
        now_s = self._clock()
        if self._coming and now_s - self._news_s > MOST_WAIT_S:
            for each in (self._coming, self._to_ask, self._being_made):
                each.clear()
        if self._being_made and now_s - self._asked_again_s > ASK_AGAIN_S:
            for sample_id, server in self._being_made.items():
                self._to_ask.setdefault(server, deque()).append(sample_id)
            self._being_made.clear()
            self._asked_again_s = now_s
        for server, queue in self._to_ask.items():
            if queue and server not in self._asked:
                ids = tuple(queue.popleft() for _ in range(min(len(queue), self._most_ids)))
                self._asked.add(server)
                self._expected[server] += 1
                self._send(server, WantSamples(ids))
        self._send_gifts()
        for rank, pieces in tuple(self._outbox.items()):
            self._forward(rank, pieces)
        self._progressed_s = self._clock()
        if self._waits_since_s is None:
            self._spent_s += self._progressed_s - began_s

    def _send_gifts(self) -> None:
        """Send what other nodes wait for, together, to those that have received what was sent before."""
        for server, entries in tuple(self._gifts.items()):
            if server not in self._outbox:
                states = [NONE if entry is None else HERE for _, entry in entries]
                ids = [sample_id for sample_id, _ in entries]
                self._send(server, GiveSamples())
                self._post(server, _packed(GIFT, ids, states, [e for _, e in entries if e is not None]))
                del self._gifts[server]

    def serve(self, source: int, message: WantSamples | GiveSamples) -> None:
        """Answer a rank of another node; called on preprocessors."""
        if isinstance(message, GiveSamples):
            self._expected[source] += 1
            self.progress()
            return
        states, entries = [], []
        for sample_id in message.ids:
            entry = self._cache.entry(sample_id)
            if entry is not None:
                entries.append(entry)
                states.append(HERE)
            elif not self._cache.has_room(sample_id):
                states.append(NONE)
            else:
                states.append(MAKE if self._cache.claim(sample_id) else WAIT)
        self._post(source, _packed(ANSWER, message.ids, states, entries))

    def end(self, receive: Callable[[], tuple[int, Message] | None]) -> None:
        """Answer the others until no rank needs anything any more; collective over `makers`.

        Args:
            receive: returns the next message to this rank, and its sender; others than those of neighbours
                are dropped.
        """

        def poll() -> None:
            found = receive()
            if found is not None and isinstance(found[1], WantSamples | GiveSamples):
                self.serve(found[0], found[1])
            self.progress()

        self.settle()
        backoff = Backoff()
        while self.has_work:
            poll()
            backoff.wait()
        self._pieces.exchange_numbers(np.zeros(self._pieces.size, np.int64), poll)

    def _take(self, source: int, piece: Piece) -> None:
        """Take note of what a piece says, and of the samples in it."""
        kind, ids, states, places = _unpacked(piece, self._cache.layout)
        if kind == GIFT:
            for sample_id, state, place in zip(ids, states, places, strict=True):
                if state == HERE:
                    self._cache.put(sample_id, *self._cache.layout.read(piece, place))
                else:
                    self._cache.give_up(sample_id)
            return
        self._asked.discard(source)
        for sample_id, state, place in zip(ids, states, places, strict=True):
            if state == MAKE:
                self._owed.add(sample_id)
            if sample_id not in self._coming:
                if state == MAKE:
                    self._give(sample_id, None)  # it came too late
            elif state == WAIT:
                self._being_made[sample_id] = source
            else:
                self._coming.discard(sample_id)
                self._num_answered += 1
                self._news_s = self._clock()
                if state == HERE:
                    self._found[sample_id] = self._cache.layout.read(piece, place)

    def _post(self, rank: int, piece: Piece) -> None:
        self._forward(rank, self._outbox.setdefault(rank, deque()), piece)

    def _forward(self, rank: int, pieces: deque[Piece], *more: Piece) -> None:
        """Send the next piece to a rank that has received the one before."""
        pieces.extend(more)
        place = self._place_of[rank]
        if self._pieces.is_free(place):
            if pieces:
                self._pieces.send(place, pieces.popleft())
            else:
                del self._outbox[rank]


def _packed(kind: int, ids: Sequence[int], states: Sequence[int], entries: Sequence[Entry]) -> Piece:
    """Pack entries into a piece: a head (kind, number, ids, states), then those that are there."""
    head = np.array([kind, len(ids), *ids, *states], np.int64).view(np.uint8)
    padding = np.zeros(aligned(len(head)) - len(head), np.uint8)
    return np.concatenate([head, padding, *entries])


def _unpacked(piece: Piece, layout: EntryLayout) -> tuple[int, Sequence[int], Sequence[int], Sequence[int]]:
    """The inverse of `_packed`: kind, ids, states, and the place of each entry in the piece."""
    piece.flags.writeable = False
    kind, number = piece[:16].view(np.int64).tolist()
    head_bytes = 16 * (1 + number)
    ids = piece[16 : 16 + 8 * number].view(np.int64).tolist()
    states = piece[16 + 8 * number : head_bytes].view(np.int64).tolist()
    places, place = [], aligned(head_bytes)
    for state in states:
        places.append(place)
        if state == HERE:
            place += layout.size_at(piece, place)
    return kind, ids, states, places
