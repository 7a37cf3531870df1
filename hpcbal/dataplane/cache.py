"""Samples of one node as they are before the first random operation: made once, used in every pass."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import NDArray

from hpcbal.data.arrays import LINE_BYTES
from hpcbal.dataplane.cache_size import KEPT_FREE, NAMED, CacheNeed, size_on_node
from hpcbal.dataplane.cell import aligned
from hpcbal.dataplane.shared_memory import PAGE_BYTES, Room, SharedMemory, rooms
from hpcbal.errors import InputError

if TYPE_CHECKING:
    from mpi4py import MPI


MOST_WAIT_S = 2.0
"""How long a sample that another rank makes or sends is waited for without any news; then it is made here."""

HOME_CHUNKS_AT, SHORTAGES_AT, OTHER_CHUNKS_AT, FULL_AT = 0, 8, 16, 24
"""Places of the counters: of chunks, of the ranks that found too little memory, and that found it full."""

NOT_FULL = 0.95
"""A cache that keeps this share has only lost some room, to ranks that made the same samples at once."""


class EntryLayout:
    """How a sample and its label lie in memory: its shape, unless all have the same one, label, sample.

    Args:
        need: what the samples take.
    """

    def __init__(self, need: CacheNeed) -> None:
        self._sample, self._label = need.sample, need.label
        self._dtype, self._label_dtype = np.dtype(need.sample.dtype), np.dtype(need.label.dtype)
        lengths = tuple(length for length in need.sample.shape if length is not None)
        self.shape = lengths if need.sample.is_static else None
        self.head_bytes = need.head_bytes

    def num_bytes(self, sample: NDArray[Any]) -> int:
        """Bytes that a sample takes with its label."""
        return self.head_bytes + aligned(sample.nbytes)

    def size_at(self, memory: NDArray[np.uint8], place: int) -> int:
        """Bytes of the sample at a place, with its label."""
        return self.head_bytes + aligned(math.prod(self._shape_at(memory, place)) * self._dtype.itemsize)

    def read(self, memory: NDArray[np.uint8], place: int) -> tuple[NDArray[Any], NDArray[Any]]:
        """Return the sample and the label at a place, where they lie."""
        label_at = place if self.shape is not None else place + 8 * len(self._sample.shape)
        label: NDArray[Any] = np.ndarray(self._label.shape, self._label_dtype, memory, label_at)
        shape = self._shape_at(memory, place)
        return np.ndarray(shape, self._dtype, memory, place + self.head_bytes), label

    def write(self, memory: NDArray[np.uint8], place: int, sample: NDArray[Any], label: NDArray[Any]) -> None:
        """Write a sample and its label to a place."""
        if self.shape is None:
            np.ndarray((sample.ndim,), np.int64, memory, place)[...] = sample.shape
        to, label_to = self.read(memory, place)
        label_to[...] = label
        to[...] = sample

    def packed(self, sample: NDArray[Any], label: NDArray[Any]) -> NDArray[np.uint8]:
        """Return a sample and its label as bytes."""
        memory = np.zeros(self.num_bytes(sample), np.uint8)
        self.write(memory, 0, sample, label)
        return memory

    def _shape_at(self, memory: NDArray[np.uint8], place: int) -> tuple[int, ...]:
        if self.shape is not None:
            return self.shape
        return tuple(np.ndarray((len(self._sample.shape),), np.int64, memory, place).tolist())


class _Chunks:
    """A part of the memory for samples, which ranks take in chunks.

    Attributes:
        grows: whether this rank may find more room in it.

    Args:
        shared: the memory.
        start, end: of the part, in bytes.
        chunk_bytes: of a chunk; the last one may be shorter.
        counter_at: place of the counter of the chunks that are taken.
        usual_bytes: what a sample of mean size takes.
        is_short: whether the node has too little memory for so many bytes more.
    """

    def __init__(
        self,
        shared: SharedMemory,
        start: int,
        end: int,
        chunk_bytes: int,
        counter_at: int,
        usual_bytes: int,
        is_short: Callable[[int], bool],
    ) -> None:
        self._shared, self._usual_bytes = shared, usual_bytes
        self._start, self._limit, self._chunk_bytes = start, end, chunk_bytes
        self._num_chunks = -(-(end - start) // chunk_bytes)
        self._counter_at = counter_at
        self._is_short = is_short
        self._next = self._end = start
        self.grows = end > start

    def take(self, num_bytes: int) -> int:
        """Return the place of so many bytes, which are this rank's from now on; 0 if there is no room."""
        if num_bytes > self._end - self._next and not (self.grows and self._grow(num_bytes)):
            return 0
        place = self._next
        self._next += num_bytes
        return place

    def _grow(self, needed: int) -> bool:
        """Get chunks for an entry that does not fit; false if there is no room for it."""
        num_chunks, memory = -(-needed // self._chunk_bytes), self._shared.memory
        # This may be an old value; the one that counts is what the addition returns.
        taken = int(memory[self._counter_at : self._counter_at + 8].view(np.int64)[0])
        if taken + num_chunks > self._num_chunks:
            # Samples that are smaller than most may still fit.
            self.grows = taken < self._num_chunks and needed > self._usual_bytes
            return False
        if self._is_short(num_chunks * self._chunk_bytes):
            self.grows = False
            return False
        first = self._shared.fetch_add(self._counter_at, num_chunks)
        if first + num_chunks > self._num_chunks:
            return False
        start = self._start + first * self._chunk_bytes
        if start != self._end:  # the rest of the last chunk is lost, unless this one follows it
            self._next = start
        self._end = min(start + num_chunks * self._chunk_bytes, self._limit)
        memory[start : self._end : PAGE_BYTES] = 0  # now, while there is memory
        memory[self._end - 1] = 0
        return needed <= self._end - self._next


class SampleCache:
    """A table with one word for each id, and memory for samples, which all that make samples on a node map.

    A rank that makes a sample writes it, and then its place into the table. A place that is not 0 is
    never changed by anyone else, and what is there stays for the whole run; so readers need no lock. If two
    ranks make the same sample at once, both places are right, and one is lost.

    Nothing is ever thrown out: once the memory is full, no sample is added. So the share of samples that are
    found is the same in every pass, in any order, and no pass can push out what the next one needs.

    Memory is handed out in chunks, to whichever preprocessor asks for one (an atomic addition of MPI). Pages
    are touched when a chunk is handed out, if the node has enough memory at that moment. If it does not, the
    cache stops growing: a write to shared memory that is not there would kill the rank.

    Barriers order the writes of a sample and of its place, as in `NodeRing`.

    Attributes:
        num_hits: samples that this rank has found, so far.
        num_fetched: 0; see `CacheWithNeighbours`.
        num_bytes: size of the cache.
        layout: of a sample in it.
        entry_bytes: bytes that a sample of mean size takes.
    """

    num_fetched = 0

    def __init__(
        self,
        shared: SharedMemory,
        need: CacheNeed,
        num_bytes: int,
        known_rooms: Callable[[], list[Room]] = list,
    ) -> None:
        """Use memory that is shared already; `create` makes it.

        Args:
            shared: at least `num_bytes`; the first `need.table_bytes` of them are 0 or in use by others.
            need: what the samples take.
            num_bytes: the size of the cache, at least `need.least_bytes`.
            known_rooms: asks for the limits of the memory, whenever the cache grows.
        """
        self._shared = shared
        self._is_open = True
        self._known_rooms = known_rooms
        self._need = need
        self.layout = EntryLayout(need)
        self.entry_bytes = need.entry_bytes
        self._memory = shared.memory[:num_bytes]
        self._readable = self._memory.view()
        self._readable.flags.writeable = False
        table = self._memory[LINE_BYTES : LINE_BYTES + 8 * need.num_ids].view(np.int64)
        self._table, self._bytes = table, self._readable.data
        self._places = table.data  # a memoryview returns a Python int in half of NumPy's time
        claims = LINE_BYTES + aligned(8 * need.num_ids)
        self._claims = self._memory[claims : claims + need.num_ids].data
        self._parts = [self._part(need.table_bytes, num_bytes, HOME_CHUNKS_AT)]
        self._is_home: Callable[[int], bool] = lambda _: True
        self.num_bytes = num_bytes
        self.num_hits = 0
        self._num_meant = need.num_samples if need.hit_rate(num_bytes) == 1.0 else 0
        self._warning = ""

    @classmethod
    def create(
        cls,
        comm: MPI.Intracomm,
        need: CacheNeed,
        wanted: int | Literal["auto"],
        ring_bytes: int,
    ) -> SampleCache | None:
        """Allocate the cache of a node; collective over the ranks that make samples.

        Args:
            comm: these ranks of the node.
            need: what the samples take, the same on all ranks.
            wanted: `dataplane.cache_bytes`, > 0.
            ring_bytes: size of the node's ring, which is there, but does not use its memory yet.

        Returns: None if there is too little memory for one sample.

        Raises:
            InputError: on all ranks, if the node has less memory than was asked for.
        """
        is_owner = comm.rank == 0
        problem, num_bytes = comm.bcast(
            size_on_node(need, wanted, comm.size, ring_bytes) if is_owner else (None, 0)
        )
        if problem is not None:
            raise InputError(problem)
        if num_bytes < need.least_bytes:
            return None
        shared = SharedMemory.create(comm, num_bytes, *NAMED)
        if is_owner:
            shared.memory[: need.table_bytes] = 0
        shared.sync()
        comm.Barrier()
        shared.sync()
        return cls(shared, need, num_bytes, rooms)

    def close(self) -> None:
        """Free the memory; idempotent, and collective over the ranks that created it."""
        if not self._is_open:
            return
        self._is_open = False
        # Views of freed memory would crash the process: drop the views first.
        del self._memory, self._readable, self._places, self._claims, self._table, self._bytes
        self._shared.free()

    def ask(self, ids: Iterable[int]) -> None:
        """Do nothing: no other cache is asked; see `CacheWithNeighbours`."""

    def is_coming(self, sample_id: int) -> bool:
        """Return False: nothing comes from elsewhere."""
        return False

    def settle(self) -> None:
        """Do nothing."""

    def get(self, sample_id: int) -> tuple[NDArray[Any], NDArray[Any]] | None:
        """Return a sample and its label where they lie, read-only; None if they are not there."""
        place = self._places[sample_id]
        if not place:
            return None
        self._shared.sync()
        self.num_hits += 1
        return self.layout.read(self._readable, place)

    def entry(self, sample_id: int) -> NDArray[np.uint8] | None:
        """Return the bytes of a sample with its label, as `layout` has them; None if they are not there."""
        place = self._places[sample_id]
        if not place:
            return None
        self._shared.sync()
        return self._readable[place : place + self.layout.size_at(self._readable, place)]

    def copy(self, ids: NDArray[np.int64], samples: NDArray[Any], labels: NDArray[Any]) -> bool:
        """Copy samples and labels, if all are there and all samples have one shape; return whether they are.

        Args:
            ids: of the samples, shape (n,).
            samples, labels: C-contiguous arrays of the specs, shape (n, ...), which are written to.
        """
        places = self._table[ids]
        if self.layout.shape is None or not (places > 0).all():
            return False
        self._shared.sync()
        to, at, num_bytes = samples.reshape(-1).view(np.uint8).data, 0, self._need.sample.max_bytes
        for place in (places + self.layout.head_bytes).tolist():
            to[at : at + num_bytes] = self._bytes[place : place + num_bytes]
            at += num_bytes
        of_labels = places[:, np.newaxis] + np.arange(self._need.label.num_bytes)
        labels.reshape(len(ids), -1).view(np.uint8)[...] = self._readable[of_labels]
        self.num_hits += len(ids)
        return True

    def put(self, sample_id: int, sample: NDArray[Any], label: NDArray[Any]) -> None:
        """Keep copies of a sample of the spec and of its label, if there is room."""
        if self._places[sample_id]:
            return
        needed = self.layout.num_bytes(sample)
        place = next(filter(None, (part.take(needed) for part in self._parts_for(sample_id))), 0)
        if not place:
            self.give_up(sample_id)
            if self.is_full and self._num_meant and self._is_home(sample_id):
                self._warn_of_full()
            return
        self.layout.write(self._memory, place, sample, label)
        self._shared.sync()
        self._places[sample_id] = place

    @property
    def is_full(self) -> bool:
        """Whether this rank adds no more samples."""
        return not any(part.grows for part in self._parts)

    def is_missing(self, sample_id: int) -> bool:
        """Whether a sample is neither there nor being made."""
        return not (self._places[sample_id] or self._claims[sample_id])

    def claim(self, sample_id: int) -> bool:
        """Say that this rank makes a sample; False if another rank of the node is making it now.

        A claim keeps others from doing the same work, and no more than that: two ranks that claim a sample at
        the same moment both make it. There are no claims once the cache is full.
        """
        if self._places[sample_id] or not self.has_room(sample_id):
            return True
        if self._claims[sample_id]:
            return False
        self._claims[sample_id] = 1
        return True

    def is_claimed(self, sample_id: int) -> bool:
        """Whether some rank is making a sample now."""
        self._shared.sync()
        return bool(self._claims[sample_id]) and not self._places[sample_id]

    def give_up(self, sample_id: int) -> None:
        """Take back the claim of a sample that was not added."""
        self._claims[sample_id] = 0

    def has(self, sample_id: int) -> bool:
        """Whether a sample is there."""
        return bool(self._places[sample_id])

    def has_room(self, sample_id: int) -> bool:
        """Whether this rank may find room for a sample."""
        return any(part.grows for part in self._parts_for(sample_id))

    def reserve(self, is_home: Callable[[int], bool], num_home: int, num_writers: int) -> None:
        """Keep room for the samples whose home this node is; others get what is left. Before the first `put`.

        Args:
            is_home: whether this node is the home of a sample.
            num_home: number of these samples.
            num_writers: ranks of the node that make samples.
        """
        start = self._need.table_bytes
        home_bytes = self._need.pool_bytes(num_home, num_writers)
        cut = min(start + aligned(home_bytes, PAGE_BYTES), self.num_bytes)
        self._parts = [
            self._part(start, cut, HOME_CHUNKS_AT),
            self._part(cut, self.num_bytes, OTHER_CHUNKS_AT),
        ]
        self._is_home = is_home
        self._num_meant = num_home if (cut - start) // self._need.entry_bytes >= num_home else 0

    def _part(self, start: int, end: int, counter_at: int) -> _Chunks:
        chunk_bytes = self._need.chunk_bytes(end - start)
        usual_bytes = self._need.entry_bytes
        return _Chunks(self._shared, start, end, chunk_bytes, counter_at, usual_bytes, self._is_short)

    def _parts_for(self, sample_id: int) -> list[_Chunks]:
        return self._parts if self._is_home(sample_id) else self._parts[1:]

    def _is_short(self, num_bytes: int) -> bool:
        """Whether the node has too little memory for so many bytes more; the first rank to find out warns."""
        for room in self._known_rooms():
            if room.left_bytes - num_bytes < KEPT_FREE * room.total_bytes:
                if self._shared.fetch_add(SHORTAGES_AT, 1) == 0:
                    self._warning = (
                        f"the cache of decoded samples does not grow any more: {room.text}; samples that are "
                        "not in it are decoded in every pass"
                    )
                return True
        return False

    def _warn_of_full(self) -> None:
        """Say that samples lack although there should be room for all; the first rank to find out does."""
        num_meant, self._num_meant = self._num_meant, 0
        num_held = sum(map(self._is_home, np.flatnonzero(self._table).tolist()))
        is_short = self._memory[SHORTAGES_AT : SHORTAGES_AT + 8].any()
        if is_short or num_held > NOT_FULL * num_meant or self._shared.fetch_add(FULL_AT, 1):
            return
        pool_bytes = self.num_bytes - self._need.table_bytes
        needed = self._need.table_bytes + int(1.1 * pool_bytes * num_meant / max(1, num_held))
        measured = self._need.num_measured
        why = f", which are larger than the {measured} that its size was estimated from" if measured else ""
        self._warning = (
            f"the cache of decoded samples is full with {num_held} of {num_meant} samples{why}; the others "
            f"are decoded in every pass; set dataplane.cache_bytes to about {needed}"
        )

    def take_warning(self) -> str:
        """Return what people should know, once and on one rank of the node; empty if there is nothing."""
        warning, self._warning = self._warning, ""
        return warning
