"""Members of folds share one stream: each gets what a pass over its own samples alone would give it."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hpcbal.comm.backoff import Backoff
from hpcbal.data.pipeline import build_operations
from hpcbal.data.source import PreprocessedSamples
from hpcbal.data.spec import LabelSpec, SampleSpec
from hpcbal.dataplane.maker import BatchMaker
from hpcbal.dataplane.producer import NodeTopology, Producer
from hpcbal.dataplane.reader import StreamReader
from hpcbal.dataplane.replication import OneNode
from hpcbal.dataplane.ring import NodeRing
from hpcbal.dataplane.stream import StreamPlan, StreamSpec
from hpcbal.errors import DataError
from hpcbal.events.history import Position
from hpcbal.policies.folds import PassParts, deal_folds, in_folds, sample_order
from hpcbal.runtime.balance.balancer import EvenSplit
from hpcbal.runtime.group.feeding import Batches, Feeder, StreamBatches
from hpcbal.runtime.group.own_batches import OwnBatches

SEED, NUM_FOLDS, BATCH, BLOCK = 3, 3, 6, 4


class Pixels:
    """Random images in three classes; some are broken."""

    num_classes = 3
    sample_spec = SampleSpec.of((4, 4, 1), "uint8")
    label_spec = LabelSpec()

    def __init__(self, num_samples: int = 61, broken: frozenset[int] = frozenset()) -> None:
        rng = np.random.default_rng(1)
        self.labels = rng.choice(3, num_samples, p=[0.6, 0.3, 0.1])
        self.pixels = rng.integers(0, 256, (num_samples, 4, 4, 1), np.uint8)
        self.broken = broken

    def __len__(self) -> int:
        return len(self.labels)

    def read(self, sample_id: int) -> tuple[Any, Any]:
        if sample_id in self.broken:
            raise OSError("broken")
        return self.pixels[sample_id], self.labels[sample_id]

    def describe(self, sample_id: int) -> str:
        return f"pixels {sample_id}"


def source_of(broken: frozenset[int] = frozenset(), held_out: float = 0.2) -> PreprocessedSamples:
    steps = build_operations([("random_flip", {}), ("random_crop", {"height": 3, "width": 3})])
    dataset: Any = Pixels(broken=broken)
    return PreprocessedSamples(dataset, steps, SEED, held_out, num_folds=NUM_FOLDS)


def spec_of(source: PreprocessedSamples, num_cells: int) -> StreamSpec:
    given = (source.num_train, source.num_positions, BLOCK, source.sample_spec, source.label_spec)
    return StreamSpec(*given, num_cells * StreamSpec(*given, 2**22).cell_bytes)


def parts_of(source: PreprocessedSamples, fold: int | None) -> PassParts:
    return PassParts(source.num_train, source.num_positions, source.fold_of, fold, SEED)


Batched = list[tuple[bool, list[int], list[Any], list[int]]]
"""Of each step: whether it trains, and the ids, samples and labels of its good samples."""


def replayed(source: PreprocessedSamples, fold: int | None, pass_index: int) -> Batched:
    """The oracle: the samples of one member alone, in the order of the pass, cut into batches."""
    assert source.fold_of is not None
    order = sample_order(source.num_train, SEED, pass_index)
    trains = [i for i in order.tolist() if source.fold_of[i] != fold]
    validates = source.validation_ids.tolist()
    if fold is not None:
        validates = source.train_ids[np.flatnonzero(source.fold_of == fold)].tolist()
    steps: Batched = []
    for training, ids in ((True, source.train_ids[trains].tolist()), (False, validates)):
        for first in range(0, len(ids), BATCH):
            good = [i for i in ids[first : first + BATCH] if i not in source.dataset.broken]  # type: ignore[attr-defined]
            made = [source.sample(i, pass_index, training) for i in good]
            steps.append((training, good, [x.tolist() for x, _ in made], [int(y) for _, y in made]))
    return steps


def steps_of(batches: Batches, spec: StreamSpec, parts: PassParts, pass_index: int, poll: Any) -> Batched:
    feeder = Feeder(spec, batches, BATCH, None, poll=poll, parts=parts)
    found = []
    for step in feeder.steps(pass_index, 0):
        x = [np.array(each).tolist() for each in step.batch.x]
        found.append((step.training, step.batch.ids.tolist(), x, step.batch.y.tolist()))
    return found


def joined(ranks: list[Batched]) -> Batched:
    """The steps of a group from the shares of its ranks."""

    def all_of(parts: Any, index: int) -> list[Any]:
        return [each for part in parts for each in part[index]]

    return [(s[0][0], all_of(s, 1), all_of(s, 2), all_of(s, 3)) for s in zip(*ranks, strict=True)]


@pytest.mark.timeout(60)
@pytest.mark.parametrize("num_cells", [5, 7, 40])
@pytest.mark.parametrize("held_out", [0.0, 0.2])
def test_all_members_read_their_own_samples_of_one_stream(num_cells: int, held_out: float) -> None:
    """Also where what a member skips is more than the ring holds, and beside one that has no fold."""
    source = source_of(frozenset({5, 40}), held_out)
    spec = spec_of(source, num_cells)
    folds = [0, 1, 2, None]
    ring = NodeRing.private(spec, len(folds), 1)
    plan = StreamPlan(1, 0, 0, producers=(0,), training_nodes=(0,))
    readers = [StreamReader(ring, index, poll=lambda: None) for index in range(len(folds))]
    for reader in readers:
        reader.begin(plan, Position(0))
    producer = Producer(ring, OneNode(0), NodeTopology((0,), (0,)), source, 0)
    producer.start(plan)
    is_over = False

    def produce() -> None:
        backoff = Backoff.patient()
        while not is_over:
            producer.step()
            backoff.wait()

    def read(reader: StreamReader, fold: int | None) -> list[Batched]:
        parts = parts_of(source, fold)
        most = parts.most_positions(BATCH)
        batches = StreamBatches(spec, reader, BATCH, 0, EvenSplit(1), most_positions=most)
        found = [steps_of(batches, spec, parts, index, lambda: None) for index in range(2)]
        reader.end()
        return found

    with ThreadPoolExecutor(len(folds) + 1) as pool:
        making = pool.submit(produce)
        try:
            found = list(pool.map(read, readers, folds))
        finally:
            is_over = True
        making.result()
    for fold, passes in zip(folds, found, strict=True):
        assert passes == [replayed(source, fold, index) for index in range(2)]


@pytest.mark.parametrize("num_ranks", [1, 2, 5])
@pytest.mark.parametrize("fold", [None, 0, 2])
def test_ranks_that_make_their_own_batches_take_the_same_samples(num_ranks: int, fold: int | None) -> None:
    source = source_of(frozenset({5, 40}))
    spec, parts = spec_of(source, 40), parts_of(source, fold)
    ranks = []
    for rank in range(num_ranks):
        batches = OwnBatches(spec, BatchMaker(spec, source), BATCH, rank, EvenSplit(num_ranks))
        ranks.append(steps_of(batches, spec, parts, 1, lambda: None))
    assert joined(ranks) == replayed(source, fold, 1)


def test_every_sample_is_in_one_fold_and_classes_are_spread() -> None:
    source = source_of()
    assert source.fold_of is not None
    labels = source.dataset.labels[source.train_ids]  # type: ignore[attr-defined]
    for numbers in (
        np.bincount(source.fold_of, minlength=NUM_FOLDS),
        *(np.bincount(source.fold_of[labels == label], minlength=NUM_FOLDS) for label in range(3)),
    ):
        assert numbers.max() - numbers.min() <= 1
    assert source.fingerprint != PreprocessedSamples(source.dataset, [], SEED, 0.2).fingerprint


@given(
    num_train=st.integers(4, 90),
    num_folds=st.integers(2, 4),
    num_held=st.integers(0, 9),
    batch=st.integers(1, 40),
    seed=st.integers(0, 50),
)
def test_a_pass_can_be_resumed_after_any_step(
    num_train: int, num_folds: int, num_held: int, batch: int, seed: int
) -> None:
    fold_of = deal_folds(num_train, num_folds, seed)
    assert sorted(in_folds(fold_of).tolist()) == list(range(num_train))
    num_positions = 2 * num_train + num_held
    for fold in (None, *range(num_folds)):
        parts = PassParts(num_train, num_positions, fold_of, fold, seed)
        steps = parts.steps(1, 0, batch)
        assert steps[-1].after == num_positions
        trained = np.concatenate([s.own.positions for s in steps if s.own.start < num_train])
        assert len(trained) == len(np.unique(trained)) == parts.num_train
        for number, step in enumerate(steps[:-1]):
            again = parts.steps(1, step.after, batch)
            assert [(s.own, s.after, s.num_before) for s in again] == [
                (s.own, s.after, s.num_before) for s in steps[number + 1 :]
            ]
            assert again[0].own.stop - again[0].own.start <= parts.most_positions(batch) or fold is None


def test_what_would_let_a_fold_into_its_training_is_refused() -> None:
    mixing = build_operations([("normalize", {"mean": 0.5, "std": 0.2}), ("mixup", {"alpha": 1.0})])
    dataset: Any = Pixels()
    with pytest.raises(DataError, match="mixup: got it beside k_fold"):
        PreprocessedSamples(dataset, mixing, SEED, 0.2, num_folds=2)
    with pytest.raises(DataError, match="k_fold: got 99, allowed: 2 to the 49 training samples"):
        PreprocessedSamples(dataset, [], SEED, 0.2, num_folds=99)
