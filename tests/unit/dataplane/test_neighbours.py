"""Nodes fetch samples from each other's caches: each is made once, bits stay, and nobody waits for ever."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from loopback import LoopbackChannel, LoopbackGroupComm, LoopbackPieces, Meeting

from hpcbal.data import BadSample, LabelSpec, PreprocessedSamples, SampleSpec
from hpcbal.data.pipeline import build_operations
from hpcbal.dataplane.cache import SampleCache
from hpcbal.dataplane.cache_size import CacheNeed
from hpcbal.dataplane.cell import aligned
from hpcbal.dataplane.maker import BatchMaker
from hpcbal.dataplane.neighbours import (
    MOST_WAIT_S,
    NUM_MEASURED,
    TRY_EVERY,
    CacheWithNeighbours,
    GiveSamples,
    Homes,
    WantSamples,
)
from hpcbal.dataplane.shared_memory import SharedMemory
from hpcbal.dataplane.stream import StreamSpec

NUM_IDS = 60
NEED = CacheNeed(NUM_IDS, NUM_IDS, SampleSpec.of((None, 5), "uint8", 5 * 9), LabelSpec((2,), "float32"), 25.0)
SERVER, ASKER, OTHER = range(3)
"""Ranks: the preprocessor of node 0, and trainers of nodes 1 and 2."""


def made(sample_id: int) -> tuple[np.ndarray, np.ndarray]:
    rows = 1 + sample_id % 9
    return np.full((rows, 5), sample_id, np.uint8), np.array([sample_id, -sample_id], np.float32)


class Nodes:
    """Three nodes of one rank each; nothing happens before `pump`."""

    def __init__(self, num_bytes: int | None = None) -> None:
        self.now_s = 0.0
        size = num_bytes or NEED.whole_bytes(1)
        self.homes = Homes([size] * 3)
        self.channels = LoopbackChannel.connect(3)
        self.caches = []
        self.each: list[CacheWithNeighbours] = []
        meeting, on_their_way = Meeting(3), {}  # type: ignore[var-annotated]
        for node in range(3):
            cache = SampleCache(SharedMemory.private(size), NEED, size)
            cache.reserve(lambda sample_id, node=node: self.homes.of(sample_id) == node, NUM_IDS // 3, 1)
            pieces = LoopbackPieces(LoopbackGroupComm(node, meeting), on_their_way)
            self.caches.append(cache)
            send, clock = self.channels[node].send, lambda: self.now_s
            self.each.append(
                CacheWithNeighbours(cache, self.homes, node, range(3), range(3), pieces, send, clock)
            )

    def ids_of(self, node: int) -> list[int]:
        return [sample_id for sample_id in range(NUM_IDS) if self.homes.of(sample_id) == node]

    def pump(self) -> None:
        """Let all that is on its way arrive."""
        for _ in range(6):
            for rank, each in enumerate(self.each):
                while (found := self.channels[rank].receive()) is not None:
                    assert isinstance(found[1], WantSamples | GiveSamples)
                    each.serve(found[0], found[1])
                each.progress()

    def make(self, rank: int, sample_id: int) -> None:
        """As a rank does it: look, make, keep."""
        if self.each[rank].get(sample_id) is None:
            self.each[rank].put(sample_id, *made(sample_id))

    def learn(self, rank: int, making_s: float) -> None:
        """Let a rank know what it costs to make a sample."""
        for sample_id in self.ids_of(rank)[:NUM_MEASURED]:
            assert self.each[rank].get(sample_id) is None
            self.now_s += making_s
            self.each[rank].put(sample_id, *made(sample_id))


@pytest.fixture
def nodes() -> Nodes:
    return Nodes()


@pytest.mark.parametrize("sizes", [(1, 1), (100, 300, 0, 100), (0, 7)])
def test_each_node_is_the_home_of_its_share_of_neighbouring_ids(sizes: tuple[int, ...]) -> None:
    homes = Homes(sizes)
    for first in (0, 123_456_789):
        counts = Counter(homes.of(sample_id) for sample_id in range(first, first + 1000))
        for node, size in enumerate(sizes):
            assert homes.share_of(node) == size / sum(sizes)
            assert abs(counts[node] - 1000 * homes.share_of(node)) < 5


def test_a_sample_that_its_home_has_comes_from_there_and_stays_where_there_is_room(nodes: Nodes) -> None:
    nodes.learn(ASKER, 1.0)
    wanted = nodes.ids_of(SERVER)[:5]
    for sample_id in wanted:
        nodes.make(SERVER, sample_id)
    asker = nodes.each[ASKER]
    asker.ask(wanted)
    assert all(asker.is_coming(sample_id) and not asker.claim(sample_id) for sample_id in wanted)
    nodes.pump()
    for sample_id in wanted:
        assert not asker.is_claimed(sample_id)
        kept = asker.get(sample_id)
        assert kept is not None
        for array, expected in zip(kept, made(sample_id), strict=True):
            np.testing.assert_array_equal(array, expected)
            assert not array.flags.writeable
        asker.put(sample_id, *kept)
        assert nodes.caches[ASKER].has(sample_id)
    assert (asker.num_fetched, asker.num_hits) == (5, 5)


def test_a_sample_that_another_rank_has_kept_meanwhile_counts_once(nodes: Nodes) -> None:
    nodes.learn(ASKER, 1.0)
    sample_id = nodes.ids_of(SERVER)[0]
    nodes.make(SERVER, sample_id)
    asker = nodes.each[ASKER]
    asker.ask([sample_id])
    nodes.pump()
    nodes.caches[ASKER].put(sample_id, *made(sample_id))
    assert asker.get(sample_id) is not None
    assert (asker.num_hits, asker.num_fetched) == (1, 0)


def test_who_needs_it_first_makes_it_for_its_home_and_others_wait(nodes: Nodes) -> None:
    nodes.learn(ASKER, 1.0)
    nodes.learn(OTHER, 1.0)
    sample_id = nodes.ids_of(SERVER)[0]
    asker, other = nodes.each[ASKER], nodes.each[OTHER]
    asker.ask([sample_id])
    nodes.pump()
    assert not asker.is_claimed(sample_id)
    other.ask([sample_id])
    nodes.pump()
    assert other.is_claimed(sample_id)
    assert not nodes.each[SERVER].claim(sample_id)
    nodes.make(ASKER, sample_id)
    nodes.pump()
    assert nodes.caches[SERVER].has(sample_id)
    nodes.now_s += 0.01
    nodes.pump()
    assert not other.is_claimed(sample_id)
    assert other.get(sample_id) is not None


@pytest.mark.parametrize("how", ["broken", "abandoned", "too late"])
def test_a_sample_that_is_not_made_after_all_is_left_to_the_next(nodes: Nodes, how: str) -> None:
    nodes.learn(ASKER, 1.0)
    nodes.learn(OTHER, 1.0)
    sample_id = nodes.ids_of(SERVER)[0]
    asker, other = nodes.each[ASKER], nodes.each[OTHER]
    asker.ask([sample_id])
    if how != "too late":
        nodes.pump()
    if how == "broken":
        asker.give_up(sample_id)
    else:
        asker.settle()
    nodes.pump()
    other.ask([sample_id])
    nodes.pump()
    assert not other.is_claimed(sample_id)
    nodes.make(OTHER, sample_id)
    nodes.pump()
    assert nodes.caches[SERVER].has(sample_id)


def test_nobody_waits_for_a_node_that_does_not_answer(nodes: Nodes) -> None:
    nodes.learn(ASKER, 1.0)
    first, second = nodes.ids_of(SERVER)[:2]
    asker = nodes.each[ASKER]
    asker.ask([first])
    assert asker.is_coming(first)
    nodes.now_s += MOST_WAIT_S + 0.1
    assert not asker.is_claimed(first)
    asker.ask([second])
    assert not asker.is_coming(second), "it has not answered yet"
    nodes.pump()
    asker.ask([second])
    assert asker.is_coming(second)


def test_samples_are_made_where_that_is_measured_to_be_faster(nodes: Nodes) -> None:
    nodes.learn(ASKER, 0.001)
    asker, ids = nodes.each[ASKER], nodes.ids_of(SERVER)
    for sample_id in ids:
        nodes.make(SERVER, sample_id)
    for sample_id in ids[:NUM_MEASURED]:
        asker.ask([sample_id])
        assert asker.is_coming(sample_id)
        nodes.now_s += 0.1
        nodes.pump()
        assert not asker.is_coming(sample_id)
    fetched = []
    for number in range(2 * TRY_EVERY):
        asker.ask([ids[-1 - number % 3]])
        fetched.append(asker.is_coming(ids[-1 - number % 3]))
        nodes.pump()
    assert sum(fetched) == 2
    assert asker.is_missing(ids[-1]), "preprocessors of this node may fill its cache with it"


def test_room_is_kept_for_the_samples_of_a_home() -> None:
    nodes = Nodes(NEED.table_bytes + aligned(NEED.pool_bytes(NUM_IDS // 3, 1), 4096) + 2048)
    first, mine = nodes.ids_of(OTHER), nodes.ids_of(SERVER)
    for sample_id in first * 2:
        nodes.make(SERVER, sample_id)
    assert 0 < sum(map(nodes.caches[SERVER].has, first)) < len(first)
    for sample_id in mine:
        nodes.make(SERVER, sample_id)
    assert all(map(nodes.caches[SERVER].has, mine))


class Numbers:
    """Small images, slow to read; one in ten is broken, and reads are counted."""

    num_classes = 2
    sample_spec = SampleSpec.of((2, 3, 1), "uint8")
    label_spec = LabelSpec()

    def __init__(self) -> None:
        self.reads: Counter[int] = Counter()

    def __len__(self) -> int:
        return NUM_IDS

    def read(self, sample_id: int) -> tuple[np.ndarray, int]:
        self.reads[sample_id] += 1
        threading.Event().wait(0.005)
        if sample_id % 10 == 7:
            raise BadSample(sample_id, "here", "it is broken")
        return np.arange(6, dtype=np.uint8).reshape(2, 3, 1) + np.uint8(sample_id), sample_id % 2

    def describe(self, sample_id: int) -> str:
        return f"number {sample_id}"


def source_of(dataset: Any) -> PreprocessedSamples:
    return PreprocessedSamples(dataset, build_operations([("random_flip", {})]), 3, 0.0)


def test_ranks_of_two_nodes_make_each_sample_once_and_all_get_the_same_bits() -> None:
    """A preprocessor and a trainer on each node; caches hold half of the samples each."""
    dataset, meeting = Numbers(), Meeting(4)
    plain = source_of(dataset)
    wanted = [(int(sample_id), 1) for sample_id in plain.ids_of_pass(1)]
    spec = StreamSpec(NUM_IDS, NUM_IDS, 8, plain.sample_spec, plain.label_spec, 2**20)
    expected = BatchMaker(spec, plain).make(wanted, training=True, out=spec.empty_batch(NUM_IDS))[0]
    dataset.reads.clear()
    need = CacheNeed.of(plain)
    assert need is not None
    dataset.reads.clear()
    size = need.table_bytes + 4 * 4096
    homes, channels = Homes([size, size]), LoopbackChannel.connect(4)
    memories = [SharedMemory.private(size) for _ in range(2)]
    on_their_way: dict[Any, Any] = {}
    results: list[Any] = []

    def caches_of(rank: int) -> CacheWithNeighbours:
        node = rank // 2
        cache = SampleCache(memories[node], need, size)
        cache.reserve(lambda sample_id: homes.of(sample_id) == node, NUM_IDS // 2, 2)
        pieces = LoopbackPieces(LoopbackGroupComm(rank, meeting), on_their_way)
        return CacheWithNeighbours(cache, homes, node, (0, 2), range(4), pieces, channels[rank].send)

    def preprocessor(rank: int) -> None:
        caches_of(rank).end(channels[rank].receive)

    def trainer(rank: int) -> None:
        source = source_of(dataset)
        source.cache = caches = caches_of(rank)
        maker = BatchMaker(spec, source)
        for _ in range(3):
            parts = []
            for start in range(0, NUM_IDS, 12):
                out = spec.empty_batch(12)
                parts.append(maker.make(wanted[start : start + 12], training=True, out=out)[0])
            results.append(parts)
        caches.end(lambda: None)

    def start(role: Callable[[int], None], rank: int) -> threading.Thread:
        thread = threading.Thread(target=role, args=(rank,), daemon=True)
        thread.start()
        return thread

    threads = [start(trainer if rank % 2 else preprocessor, rank) for rank in range(4)]
    for thread in threads:
        thread.join(60.0)
    assert not any(thread.is_alive() for thread in threads)
    assert len(results) == 6
    for parts in results:
        np.testing.assert_array_equal(np.concatenate([part.ids for part in parts]), expected.ids)
        np.testing.assert_array_equal(np.concatenate([part.x for part in parts]), expected.x)
    good = [dataset.reads[sample_id] for sample_id in range(NUM_IDS) if sample_id % 10 != 7]
    assert min(good) == 1
    assert sum(good) <= 1.2 * len(good), "a sample is made again where two ranks claim it at the same moment"
