"""Sizes of the stream, and the errors for impossible ones."""

from __future__ import annotations

import dataclasses
import pickle

import pytest

from hpcbal.data.arrays import LINE_BYTES
from hpcbal.data.spec import LabelSpec, SampleSpec
from hpcbal.dataplane.stream import StreamPlan, StreamSpec, round_block
from hpcbal.errors import InputError


def make_spec(
    num_train: int = 90,
    num_positions: int = 100,
    block_samples: int = 8,
    sample: SampleSpec | None = None,
    ring_bytes: int = 2**20,
) -> StreamSpec:
    sample = SampleSpec.of((8, 8, 1), "float32") if sample is None else sample
    return StreamSpec(num_train, num_positions, block_samples, sample, LabelSpec(), ring_bytes)


def test_last_block_of_a_pass_is_counted():
    assert make_spec(num_positions=96).blocks_per_pass == 12
    assert make_spec(num_positions=97).blocks_per_pass == 13


def test_cells_and_metadata_stay_within_ring_bytes():
    spec = make_spec(num_positions=10_000, num_train=9_000, ring_bytes=100_000)
    assert spec.cell_bytes > 8 * 256
    assert spec.num_cells * spec.cell_bytes <= 100_000 < (spec.num_cells + 1) * spec.cell_bytes


def test_a_small_data_set_is_not_prepared_many_passes_ahead():
    spec = make_spec(ring_bytes=2**30)
    assert spec.num_cells == spec.blocks_per_pass + 1
    assert make_spec(num_positions=5, num_train=4, ring_bytes=2**30).num_cells == 2


def test_ring_for_one_block_is_refused_with_the_bytes_needed():
    needed = 2 * make_spec().cell_bytes
    make_spec(ring_bytes=needed)
    with pytest.raises(InputError, match=rf"dataplane.ring_bytes: got {needed - 1}.*at least {needed}"):
        make_spec(ring_bytes=needed - 1)


@pytest.mark.parametrize("batch_size", [1, 8, 9, 10, 57])
def test_a_ring_of_the_bytes_for_a_batch_holds_it(batch_size: int):
    """Wherever it begins in a block; two blocks are the least."""
    spec = make_spec(ring_bytes=make_spec().bytes_to_read(batch_size))
    spec.check_read(batch_size)
    assert spec.num_cells == 2 or spec.max_read_samples < batch_size + spec.block_samples


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"block_samples": 0}, "block_samples: got 0"),
        ({"num_train": 101}, "101 training samples of 100"),
        ({"num_train": 0, "num_positions": 0}, "at least one sample"),
        ({"sample": SampleSpec.of((None, 3), "float32")}, "max_sample_bytes"),
        ({"block_samples": 2**24, "ring_bytes": 2**60}, "block_samples: a block of"),
    ],
)
def test_impossible_sizes_are_named(changes: dict, words: str):
    with pytest.raises(InputError, match=words):
        make_spec(**changes)


def test_any_range_up_to_the_limit_touches_no_more_blocks_than_cells():
    spec = dataclasses.replace(make_spec(), ring_bytes=4 * make_spec().cell_bytes)
    assert spec.num_cells == 4
    for size in range(1, spec.max_read_samples + 1):
        for start in range(spec.num_positions - size + 1):
            first, last = start // spec.block_samples, (start + size - 1) // spec.block_samples
            assert last - first + 1 <= spec.num_cells
    spec.check_read(spec.max_read_samples)
    with pytest.raises(InputError, match=r"does not fit in the ring.*raise it to"):
        spec.check_read(spec.max_read_samples + 1)


def test_a_ring_that_holds_a_pass_takes_any_batch():
    assert make_spec(ring_bytes=2**30).max_read_samples == 100


def test_end_of_a_pass_is_the_start_of_the_next():
    spec = make_spec(num_positions=97)
    assert round_block(spec, 3, 3, 0) == 0
    assert round_block(spec, 3, 3, 96) == 12
    assert round_block(spec, 3, 3, 97) == 13 == round_block(spec, 3, 4, 0)


def test_every_block_has_exactly_one_producer():
    for first_block in range(7):
        plan = StreamPlan(1, 0, first_block, (5, 3, 9), (0,))
        made = sorted(b for i in range(3) for b in range(plan.first_block_of(i), 40, 3))
        assert made == list(range(first_block, 40))
        assert all(plan.first_block_of(i) % 3 == i for i in range(3))


def test_spec_and_plan_travel():
    spec, plan = make_spec(), StreamPlan(1, 0, 0, (1,), (0,))
    assert pickle.loads(pickle.dumps((spec, plan))) == (spec, plan)


def test_cells_start_on_cache_lines():
    assert make_spec(block_samples=7).layout.meta_bytes % LINE_BYTES == 0
