"""Ranks that make their own batches train the samples of the shared stream, to the bit."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hpcbal.config.schema.ensemble import BalanceConfig
from hpcbal.data.pipeline import build_operations
from hpcbal.data.source import PreprocessedSamples
from hpcbal.data.spec import LabelSpec, SampleSpec
from hpcbal.dataplane.cache import SampleCache
from hpcbal.dataplane.cache_size import CacheNeed
from hpcbal.dataplane.maker import BatchMaker
from hpcbal.dataplane.producer import NodeTopology, Producer
from hpcbal.dataplane.reader import Batch, StreamReader
from hpcbal.dataplane.replication import OneNode
from hpcbal.dataplane.ring import NodeRing
from hpcbal.dataplane.shared_memory import SharedMemory
from hpcbal.dataplane.stream import StreamPlan, StreamSpec
from hpcbal.events.history import Position
from hpcbal.runtime.balance.balancer import EvenSplit
from hpcbal.runtime.balance.dealing import make_dealer
from hpcbal.runtime.balance.step import Step
from hpcbal.runtime.group.feeding import Batches, Feeder, StreamBatches
from hpcbal.runtime.group.own_batches import OwnBatches
from hpcbal.training.groups import GroupFailed

NUM_SAMPLES, SEED, BATCH = 47, 3, 11


class Pixels:
    """Random images of 4 x 4 pixels in five classes of unequal size; some are broken."""

    num_classes = 5
    sample_spec = SampleSpec.of((4, 4, 1), "uint8")
    label_spec = LabelSpec()

    def __init__(self, broken: frozenset[int] = frozenset(), sizes: Any = None) -> None:
        self.labels = np.random.default_rng(1).choice(5, NUM_SAMPLES, p=[0.4, 0.3, 0.15, 0.1, 0.05])
        self.pixels = np.random.default_rng(2).integers(0, 256, (NUM_SAMPLES, 4, 4, 1), np.uint8)
        self.broken = broken
        self.num_reads = 0
        if sizes is not None:
            self.sizes = sizes

    def __len__(self) -> int:
        return NUM_SAMPLES

    def read(self, sample_id: int) -> tuple[Any, Any]:
        self.num_reads += 1
        if sample_id in self.broken:
            raise OSError("broken")
        return self.pixels[sample_id], self.labels[sample_id]

    def describe(self, sample_id: int) -> str:
        return f"pixels {sample_id}"


def source_of(dataset: Pixels, steps: list[Any], *, balanced: bool = False) -> PreprocessedSamples:
    return PreprocessedSamples(dataset, build_operations(steps), SEED, 0.2, balanced=balanced)


def spec_of(source: PreprocessedSamples, block_samples: int) -> StreamSpec:
    return StreamSpec(
        source.num_train, source.num_positions, block_samples, source.sample_spec, source.label_spec, 2**22
    )


def by_stream(source: PreprocessedSamples, spec: StreamSpec, batch_size: int) -> list[Batch]:
    """The batches of two passes of a shared stream, for one rank."""
    reader, produce = stream_of(source, spec)
    batches = StreamBatches(spec, reader, batch_size, 0, EvenSplit(1))
    feeder = Feeder(spec, batches, batch_size, None, poll=produce)
    return [copied(step.batch) for p in range(2) for step in feeder.steps(p, 0)]


def stream_of(source: PreprocessedSamples, spec: StreamSpec) -> tuple[StreamReader, Callable[[], None]]:
    """A reader of a shared stream, and what makes more of it."""
    ring = NodeRing.private(spec, 1, 1)
    producer = Producer(ring, OneNode(0), NodeTopology((0,), (0,)), source, 0)

    def produce() -> None:
        producer.step()

    reader = StreamReader(ring, 0, poll=produce)
    plan = StreamPlan(1, 0, 0, producers=(0,), training_nodes=(0,))
    reader.begin(plan, Position(0))
    producer.start(plan)
    return reader, produce


def by_ranks(
    source: PreprocessedSamples, spec: StreamSpec, batch_size: int, num_ranks: int
) -> list[list[Batch]]:
    """The batches of the same passes, by step and rank, of ranks that make their own."""
    ranks = []
    for rank in range(num_ranks):
        batches = OwnBatches(spec, BatchMaker(spec, source), batch_size, rank, EvenSplit(num_ranks))
        feeder = Feeder(spec, batches, batch_size, None, poll=lambda: None)
        ranks.append([copied(step.batch) for p in range(2) for step in feeder.steps(p, 0)])
    return [list(step) for step in zip(*ranks, strict=True)]


def copied(batch: Batch) -> Batch:
    return Batch(batch.ids.copy(), np.array(batch.x), batch.y.copy())


@given(
    block_samples=st.integers(2, 50),
    batch_size=st.integers(1, 60),
    num_ranks=st.integers(1, 4),
    broken=st.frozensets(st.integers(0, NUM_SAMPLES - 1), max_size=6),
    balanced=st.booleans(),
    steps=st.sampled_from(
        [
            [("normalize", {"mean": 0.5, "std": 0.25})],
            [("random_flip", {})],
            [("random_crop", {"height": 3, "width": 3}), ("mixup", {"alpha": 1.0})],
        ]
    ),
)
def test_all_ranks_together_take_the_batches_of_the_stream(
    block_samples: int, batch_size: int, num_ranks: int, broken: frozenset[int], balanced: bool, steps: Any
) -> None:
    source = source_of(Pixels(broken), steps, balanced=balanced)
    spec = spec_of(source, block_samples)
    wanted = by_stream(source, spec, batch_size)
    made = by_ranks(source, spec, batch_size, num_ranks)
    assert len(made) == len(wanted)
    for step, whole in zip(made, wanted, strict=True):
        np.testing.assert_array_equal(np.concatenate([batch.ids for batch in step]), whole.ids)
        np.testing.assert_array_equal(np.concatenate([batch.x for batch in step]), whole.x)
        np.testing.assert_array_equal(np.concatenate([batch.y for batch in step]), whole.y)


def test_broken_samples_are_reported_once_for_each_time_that_they_are_needed() -> None:
    source = source_of(Pixels(frozenset({4, 9})), [("random_flip", {})])
    maker = BatchMaker(spec_of(source, 8), source)
    batch, _ = maker.make([(4, 0), (5, 0), (9, 0)], training=True, out=None)
    assert batch.ids.tolist() == [5]
    assert [(sample_id, where) for sample_id, where, _ in maker.take_bad()] == [
        (4, "pixels 4"),
        (9, "pixels 9"),
    ]
    assert maker.take_bad() == []


def test_labels_stay_with_their_samples_where_sizes_differ_and_one_is_broken() -> None:
    dataset = Pixels(frozenset({5}))
    source = source_of(dataset, [])
    batch, _ = BatchMaker(spec_of(source, 8), source).make(
        [(sample_id, 0) for sample_id in range(4, 8)], training=True, out=None
    )
    assert batch.ids.tolist() == [4, 6, 7]
    assert batch.y.tolist() == dataset.labels[[4, 6, 7]].tolist()


def cache_of(source: PreprocessedSamples, num_bytes: int | None = None) -> SampleCache:
    need = CacheNeed.of(source)
    assert need is not None
    size = need.whole_bytes(4) if num_bytes is None else num_bytes
    return SampleCache(SharedMemory.private(size), need, size)


def test_ranks_that_need_the_same_samples_at_once_make_each_of_them_once() -> None:
    """All begin with the same sample, like DNNs that start together."""
    dataset = Pixels()
    source = source_of(dataset, [("random_flip", {})])
    source.cache = cache_of(source)
    spec, wanted = spec_of(source, 8), [(sample_id, 0) for sample_id in range(40)]
    barrier, made, lock = threading.Barrier(4), [], threading.Lock()
    read = dataset.read

    def slowly(sample_id: int) -> Any:
        with lock:
            dataset.slept = getattr(dataset, "slept", 0) + 1  # type: ignore[attr-defined]
        threading.Event().wait(0.002)
        return read(sample_id)

    dataset.read = slowly  # type: ignore[method-assign]

    def rank() -> None:
        maker = BatchMaker(spec, source)
        barrier.wait()
        made.append(maker.make(wanted, training=True, out=None)[0])

    threads = [threading.Thread(target=rank) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for first, other in itertools.pairwise(made):
        np.testing.assert_array_equal(np.array(first.x), np.array(other.x))
    assert 40 <= dataset.num_reads <= 44, "no sample is made again while another rank makes it"


@pytest.mark.parametrize("num_bytes", [None, 4096 + 512])
def test_a_claim_ends_when_the_sample_turns_out_broken_or_has_no_room(num_bytes: int | None) -> None:
    dataset = Pixels(frozenset({0}))
    source = source_of(dataset, [("random_flip", {})])
    cache = source.cache = cache_of(source, num_bytes)
    maker = BatchMaker(spec_of(source, 8), source)
    maker.make([(sample_id, 0) for sample_id in range(NUM_SAMPLES)], training=True, out=None)
    assert not any(map(cache.is_claimed, range(NUM_SAMPLES)))
    assert cache.is_missing(0)
    assert cache.is_full == any(map(cache.is_missing, range(1, NUM_SAMPLES)))


def test_a_rank_that_gives_up_its_batch_leaves_no_claim() -> None:
    source = source_of(Pixels(), [("random_flip", {})])
    cache = source.cache = cache_of(source)
    maker = BatchMaker(spec_of(source, 8), source)
    calls = itertools.count()

    def stop_at_third() -> None:
        if next(calls) == 2:
            raise TimeoutError

    maker.poll = stop_at_third
    with pytest.raises(TimeoutError):
        maker.make([(sample_id, 0) for sample_id in range(5)], training=True, out=None)
    assert not any(map(cache.is_claimed, range(NUM_SAMPLES)))
    assert [cache.is_missing(sample_id) for sample_id in range(5)] == [False, False, True, True, True]


def test_a_claim_that_comes_late_hides_no_sample() -> None:
    """A rank that found no sample claims it after another one has added it."""
    source = source_of(Pixels(), [("random_flip", {})])
    cache = source.cache = cache_of(source)
    maker = BatchMaker(spec_of(source, 8), source)
    maker.make([(3, 0)], training=True, out=None)
    cache._claims[3] = 1
    assert cache.get(3) is not None
    assert not cache.is_claimed(3)
    assert cache.claim(3)


class Lines(Pixels):
    """Samples of 1 to 9 numbers; they say so if asked."""

    sample_spec = SampleSpec.of((None,), "uint8", 9)

    def __init__(self, broken: frozenset[int] = frozenset(), declared: bool = False) -> None:
        self.lengths = np.random.default_rng(4).integers(1, 10, NUM_SAMPLES)
        super().__init__(broken, self.lengths if declared else None)

    def read(self, sample_id: int) -> tuple[Any, Any]:
        pixels, label = super().read(sample_id)
        return pixels.ravel()[: self.lengths[sample_id]], label


def dealt_steps(
    source: PreprocessedSamples, settings: dict[str, Any], num_ranks: int, *, own: bool
) -> list[list[Step]]:
    """The steps of two passes, of each rank of a group whose steps are dealt."""
    spec = replace(spec_of(source, 5), is_sized=True)
    ranks = []
    for rank in range(num_ranks):
        dealer = make_dealer(
            BalanceConfig(**settings), is_sized=True, num_ranks=num_ranks, mean_size=source.mean_size
        )
        split = EvenSplit(num_ranks)
        if own:
            batches: Batches = OwnBatches(spec, BatchMaker(spec, source), BATCH, rank, split, dealer)
            feeder = Feeder(spec, batches, BATCH, None, poll=lambda: None)
        else:
            reader, produce = stream_of(source, spec)
            batches = StreamBatches(spec, reader, BATCH, rank, split, dealer)
            feeder = Feeder(spec, batches, BATCH, None, poll=produce)
        ranks.append([copied_step(step) for p in range(2) for step in feeder.steps(p, 0)])
    return ranks


def copied_step(step: Step) -> Step:
    batch = step.batch
    x = [np.array(sample) for sample in batch.x]
    return replace(step, batch=replace(batch, ids=batch.ids.copy(), x=x, y=batch.y.copy()))


@pytest.mark.parametrize("declared", [False, True])
@pytest.mark.parametrize("samples", ["within-batch", "in-order"])
@pytest.mark.parametrize("num_ranks", [1, 3])
@pytest.mark.parametrize("balanced", [False, True])
def test_steps_are_dealt_by_size_as_those_of_the_stream_are(
    declared: bool, samples: str, num_ranks: int, balanced: bool
) -> None:
    """Also if the dataset declares no sizes, and some samples are broken."""
    broken: frozenset[int] = frozenset() if declared else frozenset({4, 9})
    source = source_of(Lines(broken, declared), [], balanced=balanced)
    limit = {"max_work_per_slot": 99.0} if samples == "within-batch" else {}
    settings = {"samples": samples, "gradient_weights": "size", **limit}
    made = dealt_steps(source, settings, num_ranks, own=True)
    for own, wanted in zip(made, dealt_steps(source, settings, num_ranks, own=False), strict=True):
        for step, other in zip(own, wanted, strict=True):
            np.testing.assert_array_equal(step.batch.ids, other.batch.ids)
            assert [x.tolist() for x in step.batch.x] == [x.tolist() for x in other.batch.x]
            np.testing.assert_array_equal(step.batch.y, other.batch.y)
            facts = ("work", "slowest", "weight", "planned", "counts")
            assert [getattr(step, fact) for fact in facts] == [getattr(other, fact) for fact in facts]
            assert step.batch.padding_limit == other.batch.padding_limit


@pytest.mark.parametrize("num_ranks", [1, 3])
def test_a_step_above_the_limit_of_work_fails_also_if_sizes_are_not_declared(num_ranks: int) -> None:
    source = source_of(Lines(), [])
    with pytest.raises(GroupFailed, match=r"allowed: 20 \(balance\.max_work_per_slot\)"):
        dealt_steps(source, {"max_work_per_slot": 20.0}, num_ranks, own=True)
