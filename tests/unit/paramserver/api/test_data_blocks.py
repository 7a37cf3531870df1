"""Samples are cut into blocks, and steps take every sample of an epoch once."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hpcbal.errors import InputError
from hpcbal.paramserver.api.batch import DataBlocks, num_steps, order_of_block, step_samples, step_slice


@st.composite
def all_blocks(draw: st.DrawFn) -> DataBlocks:
    num_samples = draw(st.integers(1, 2000))
    return DataBlocks(num_samples, draw(st.integers(1, min(num_samples, 60))))


@given(all_blocks())
def test_blocks_hold_every_sample_once_and_differ_by_one(blocks: DataBlocks) -> None:
    parts = [blocks.samples(block) for block in range(blocks.num_blocks)]
    assert np.concatenate(parts).tolist() == list(range(blocks.num_samples))
    sizes = [blocks.size(block) for block in range(blocks.num_blocks)]
    assert max(sizes) - min(sizes) <= 1
    assert sizes == [len(part) for part in parts]


@given(all_blocks(), st.integers(1, 300))
def test_steps_take_every_position_of_a_block_once(blocks: DataBlocks, mini_batch: int) -> None:
    steps = num_steps(blocks.num_samples, mini_batch)
    for block in range(blocks.num_blocks):
        spans = [step_slice(blocks, block, step, steps) for step in range(steps)]
        taken = [position for start, stop in spans for position in range(start, stop)]
        assert taken == list(range(blocks.size(block)))


@given(all_blocks(), st.integers(1, 300))
def test_steps_hold_about_the_mini_batch(blocks: DataBlocks, mini_batch: int) -> None:
    steps = num_steps(blocks.num_samples, mini_batch)
    counts = [step_samples(blocks, step, steps) for step in range(steps)]
    assert sum(counts) == blocks.num_samples
    assert all(abs(count - blocks.num_samples / steps) < blocks.num_blocks for count in counts)


@given(st.integers(1, 60), st.integers(1, 40), st.integers(1, 300))
def test_steps_of_equal_blocks_are_nearly_equal(num_blocks: int, size: int, mini_batch: int) -> None:
    blocks = DataBlocks(num_blocks * size, num_blocks)
    steps = num_steps(blocks.num_samples, mini_batch)
    counts = [step_samples(blocks, step, steps) for step in range(steps)]
    # Phases by the golden ratio: the discrepancy grows like the logarithm of the number of blocks.
    assert max(counts) - min(counts) <= 2 + 2 * np.log2(num_blocks + 1)


def test_a_worker_with_neighbouring_small_blocks_has_samples_in_most_steps() -> None:
    blocks = DataBlocks(1000, 100)
    steps = num_steps(1000, 50)  # 20 steps of 50; blocks of 10 samples
    for owned in (range(20), range(37, 57), range(80, 100)):
        spans = [[step_slice(blocks, block, step, steps) for block in owned] for step in range(steps)]
        counts = [sum(stop - start for start, stop in each) for each in spans]
        assert min(counts) >= 7
        assert max(counts) <= 13


def test_the_order_depends_on_seed_epoch_and_block_alone() -> None:
    order = order_of_block(1, 2, 3, 50)
    assert sorted(order.tolist()) == list(range(50))
    assert order.tolist() == order_of_block(1, 2, 3, 50).tolist()
    for other in ((0, 2, 3), (1, 0, 3), (1, 2, 0)):
        assert order.tolist() != order_of_block(*other, 50).tolist()


@pytest.mark.parametrize(("samples", "blocks"), [(0, 1), (5, 6), (5, 0)])
def test_too_many_blocks_are_an_error(samples: int, blocks: int) -> None:
    with pytest.raises(InputError, match=rf"got {blocks} blocks of {samples} samples"):
        DataBlocks(samples, blocks)
