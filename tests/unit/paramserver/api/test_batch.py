"""Batches hold the samples of several blocks, and the random numbers of each."""

from __future__ import annotations

import numpy as np
import pytest

from hpcbal.paramserver.api.batch import DataBlock, gather_batch, rng_of_batch, scatter_state, whole_block


def block_of(number: int, first: int, count: int) -> DataBlock:
    ids = np.arange(first, first + count)
    return DataBlock(number, first, {"x": ids * 1.0}, {"seen": np.zeros(count, np.int64)})


def test_a_batch_holds_its_samples_in_order_of_blocks() -> None:
    low, high = block_of(1, 10, 5), block_of(4, 40, 5)
    slices = [
        (high, 2, np.array([3, 0])),
        (block_of(2, 20, 5), 0, np.empty(0, np.int64)),
        (low, 0, np.array([4])),
    ]
    batch = gather_batch(slices, seed=7, epoch=3, step_samples=9)
    assert batch.samples.tolist() == [14, 43, 40]
    assert np.asarray(batch.columns["x"]).tolist() == [14.0, 43.0, 40.0]
    assert [(part.data_block, part.start, part.stop) for part in batch.parts] == [(1, 0, 1), (4, 1, 3)]
    assert (batch.num_samples, batch.step_samples, batch.epoch) == (3, 9, 3)
    np.asarray(batch.state["seen"])[:] = [1, 2, 3]
    scatter_state(batch, slices)
    assert np.asarray(low.state["seen"]).tolist() == [0, 0, 0, 0, 1]
    assert np.asarray(high.state["seen"]).tolist() == [3, 0, 0, 2, 0]


def test_random_numbers_of_a_block_do_not_depend_on_the_other_blocks_of_the_batch() -> None:
    low, high = (block_of(1, 10, 5), 0, np.array([4])), (block_of(4, 40, 5), 2, np.array([3, 0]))
    both = gather_batch([low, high], seed=7, epoch=3).draw(lambda rng, count: rng.random((count, 2)))
    alone = gather_batch([high], seed=7, epoch=3).draw(lambda rng, count: rng.random((count, 2)))
    assert both[1:].tolist() == alone.tolist()
    assert alone.tolist() == rng_of_batch(7, 3, 4, 2).random((2, 2)).tolist()


def test_a_batch_alone_is_a_step_of_its_own() -> None:
    assert gather_batch([(block_of(0, 0, 3), 0, np.array([1, 2]))], seed=0, epoch=0).step_samples == 2


def test_a_whole_block_is_not_copied() -> None:
    block = block_of(2, 20, 3)
    batch = whole_block(block, seed=0, epoch=1)
    assert batch.samples.tolist() == [20, 21, 22]
    assert batch.columns["x"] is block.columns["x"]
    assert batch.state["seen"] is block.state["seen"]
    assert batch.parts[0].num_samples == batch.step_samples == 3


@pytest.mark.parametrize("other", [(8, 3, 4, 2), (7, 2, 4, 2), (7, 3, 5, 2), (7, 3, 4, 1)])
def test_random_numbers_differ_by_seed_epoch_block_and_position(other: tuple[int, int, int, int]) -> None:
    assert rng_of_batch(*other).random() != rng_of_batch(7, 3, 4, 2).random()
