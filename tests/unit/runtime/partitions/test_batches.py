"""A rank draws its share from its own part, in traversals; each validation sample counts once in a pass."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from loopback import LoopbackGroupComm, LoopbackPieces, Meeting

from hpcbal.data import PreprocessedSamples, SampleSpec
from hpcbal.data.dataset import HeldSamples
from hpcbal.data.operations.base import Operation
from hpcbal.data.operations.mixing import Mixup
from hpcbal.data.spec import LabelSpec
from hpcbal.dataplane.stream import StreamSpec
from hpcbal.errors import DataError
from hpcbal.policies.partitioning import Partition, deal_parts
from hpcbal.runtime.balance.balancer import FixedSplit
from hpcbal.runtime.group.feeding import Feeder
from hpcbal.runtime.partitions.batches import PartBatches
from hpcbal.runtime.partitions.part import Parts

NUM_SAMPLES, NUM_RANKS, BATCH_SIZE = 40, 3, 8
SIZES = (4, 3, 1)


class Numbers:
    """Samples that are their own ids; their lengths may differ."""

    num_classes = 5
    label_spec = LabelSpec()
    validation_ids = tuple(range(30, NUM_SAMPLES))

    def __init__(self, static: bool) -> None:
        self._static = static
        self.sample_spec = SampleSpec.of((2 if static else None,), "float64", 160)

    def __len__(self) -> int:
        return NUM_SAMPLES

    def read(self, sample_id: int) -> tuple[Any, int]:
        return np.full(2 if self._static else 1 + sample_id % 3, float(sample_id)), sample_id % 5

    def describe(self, sample_id: int) -> str:
        return str(sample_id)


class Jitter(Operation):
    """Adds a random number below 0.5."""

    is_random = True

    def output_spec(self, spec: SampleSpec | None) -> SampleSpec:
        assert spec is not None
        return spec

    def apply(self, sample: Any, rng: np.random.Generator | None) -> Any:
        return sample if rng is None else sample + rng.uniform(0.0, 0.5)


def nothing() -> None:
    """Nothing waits here."""


def batches_of(
    rank: int, static: bool = True, broken: tuple[int, ...] = (), operation: Any = None
) -> tuple[Feeder, PartBatches]:
    operations = [Jitter() if operation is None else operation]
    source = PreprocessedSamples(
        Numbers(static), operations, seed=1, validation_fraction=0.2, max_sample_bytes=160
    )
    spec = StreamSpec(30, NUM_SAMPLES, 8, source.sample_spec, source.label_spec, ring_bytes=2**20)
    partition: Partition = deal_parts(30, NUM_RANKS, "random", 1)
    held = HeldSamples(source.dataset)
    for sample_id in [*partition.members(rank).tolist(), *range(30 + rank, NUM_SAMPLES, NUM_RANKS)]:
        held.put(sample_id, *source.read(sample_id))
    pieces = LoopbackPieces(LoopbackGroupComm(rank, Meeting(NUM_RANKS)), {})
    parts = Parts(pieces, held, source.train_ids, partition, None, 1, nothing)
    usable = np.array([sample_id not in broken for sample_id in range(30, NUM_SAMPLES)])
    found = [(sample_id, str(sample_id), "broken") for sample_id in broken]
    batches = PartBatches(
        spec, source.over(held), parts, FixedSplit(SIZES), BATCH_SIZE, 1, usable, len(broken), found
    )
    return Feeder(spec, batches, BATCH_SIZE, None, poll=lambda: None), batches


@pytest.mark.parametrize("static", [True, False])
def test_passes_of_all_ranks(static: bool) -> None:
    drawn: list[int] = []
    validated: list[int] = []
    for rank in range(NUM_RANKS):
        feeder, batches = batches_of(rank, static)
        mine = []
        for pass_index in range(3):
            for step in feeder.steps(pass_index, 0):
                assert step.num_samples_total == sum(step.shares.counts) == step.end - step.start
                assert len(step.batch) == step.shares.counts[rank]
                for sample_id, x, y in zip(step.batch.ids, step.batch.x, step.batch.y, strict=True):
                    assert y == sample_id % 5
                    assert (np.floor(x) == sample_id).all()
                    assert (x == sample_id).all() != step.training
                    assert len(x) == (2 if static else 1 + sample_id % 3)
                if step.training:
                    mine += step.batch.ids.tolist()
                    batches.step_performed()
                elif pass_index == 2:
                    validated += step.batch.ids.tolist()
        for traversal in range(len(mine) // 10):
            assert len(set(mine[10 * traversal : 10 * traversal + 10])) == 10
        assert mine[:10] != mine[10:20] or rank == NUM_RANKS - 1
        assert batches.parts.facts()["traversals"][rank] == len(mine) / 10
        assert batches.maker.samples_made > len(mine)
        drawn += sorted(set(mine))
    assert sorted(drawn) == list(range(30))
    assert sorted(validated) == list(range(30, NUM_SAMPLES))


def test_steps_report_what_this_rank_has_spent_on_them() -> None:
    feeder, batches = batches_of(0)
    seconds = [step.preprocessing_s for step in feeder.steps(0, 0)]
    assert min(seconds) > 0.0
    assert sum(seconds) == pytest.approx(batches.maker.busy_s)


def test_a_sample_looks_different_in_each_traversal() -> None:
    feeder, batches = batches_of(0)
    seen: dict[int, list[float]] = {}
    for pass_index in range(3):
        for step in feeder.steps(pass_index, 0):
            if step.training:
                batches.step_performed()
                for sample_id, x in zip(step.batch.ids.tolist(), step.batch.x, strict=True):
                    seen.setdefault(sample_id, []).append(float(x[0]))
    assert min(map(len, seen.values())) >= 4
    assert all(len(set(values)) == len(values) for values in seen.values())


def test_a_pass_that_is_gone_on_with_draws_what_comes_next() -> None:
    whole = [step.batch.ids.tolist() for step in batches_of(0)[0].steps(0, 0)]
    feeder, batches = batches_of(0)
    for _ in range(2):
        batches.parts.plan_step(SIZES)
    assert [step.batch.ids.tolist() for step in feeder.steps(0, 16)] == whole[2:]


def test_broken_samples_of_validation_are_left_out_by_all() -> None:
    validated: list[int] = []
    for rank in range(NUM_RANKS):
        feeder, batches = batches_of(rank, broken=(31, 35))
        steps = list(feeder.steps(0, 30))
        assert [step.num_samples_total for step in steps] == [6, 2]
        for step in feeder.steps(0, 30):  # memory is used again two steps later
            validated += step.batch.ids.tolist()
        assert batches.num_bad == len(batches.maker.take_bad()) == 2
        assert batches.maker.take_bad() == []
    assert sorted(validated) == [30, 32, 33, 34, 36, 37, 38, 39]


def test_a_sample_that_breaks_later_is_named() -> None:
    feeder, batches = batches_of(0)
    first = next(iter(feeder.steps(0, 0))).batch.ids.tolist()
    feeder, batches = batches_of(0)
    batches.parts.held.put(first[1], np.zeros(5), 1)
    with pytest.raises(DataError, match=rf"sample {first[1]} .*it could be preprocessed when this"):
        next(iter(feeder.steps(0, 0)))


def test_samples_are_mixed_with_others_that_the_rank_draws_for_the_step() -> None:
    feeder, batches = batches_of(0, operation=Mixup(alpha=1.0))
    again = batches_of(0, operation=Mixup(alpha=1.0))[0].steps(0, 0)
    seen = 0
    for step, same in zip(feeder.steps(0, 0), again, strict=True):
        np.testing.assert_array_equal(step.batch.x, same.batch.x)
        np.testing.assert_array_equal(step.batch.y, same.batch.y)
        ids = step.batch.ids
        assert step.batch.y.shape == (len(ids), 5)
        for own, other, x, y in zip(ids, np.roll(ids, -1), step.batch.x, step.batch.y, strict=True):
            if step.training and own % 5 != other % 5:
                weight = float(y[own % 5])
                assert 0 < weight < 1
                assert y[other % 5] == pytest.approx(1 - weight, abs=1e-6)
                np.testing.assert_allclose(x, weight * own + (1 - weight) * other, rtol=1e-5)
                seen += 1
            if not step.training:
                assert (x == own).all()
                assert y.tolist() == np.eye(5)[own % 5].tolist()
        if step.training:
            batches.step_performed()
    assert seen > 4
