"""Blocks are filled in the order of the pass, with holes where samples are broken."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from hpcbal.data.dataset import BadSample
from hpcbal.data.spec import LabelSpec, SampleSpec
from hpcbal.dataplane.cell import Cell
from hpcbal.dataplane.composer import BlockComposer
from hpcbal.dataplane.stream import StreamSpec
from hpcbal.errors import DataError


class ListSource:
    """Ten samples in reverse order; 8 and 9 are for validation; logs the requests."""

    def __init__(self, sample: np.ndarray, bad: tuple[int, ...] = ()) -> None:
        self.log: list[tuple[int, int, bool]] = []
        self._sample = sample
        self._bad = bad

    def ids_of_pass(self, pass_index: int) -> np.ndarray:
        return np.array([7, 6, 5, 4, 3, 2, 1, 0, 8, 9])

    def sample(self, sample_id: int, pass_index: int, training: bool) -> tuple[np.ndarray, np.ndarray]:
        self.log.append((sample_id, pass_index, training))
        if sample_id in self._bad:
            raise BadSample(sample_id, f"f{sample_id}.png", "truncated")
        return self._sample + sample_id, np.array(sample_id)


class ArraySource(ListSource):
    def samples(self, ids: np.ndarray, pass_index: int, training: bool) -> tuple[np.ndarray, np.ndarray]:
        self.log.extend((int(i), pass_index, training) for i in ids)
        return np.stack([self._sample + int(i) for i in ids]), ids


def compose(source: ListSource, spec: StreamSpec, block: int) -> tuple[Cell, BlockComposer]:
    composer, cell = BlockComposer(spec, source), Cell.private(spec.layout)
    composer.begin(cell, 1, block, 5)
    while not composer.step():
        pass
    return cell, composer


def make_spec(sample: SampleSpec) -> StreamSpec:
    return StreamSpec(8, 10, 3, sample, LabelSpec(), 2**20)


STATIC = make_spec(SampleSpec.of((2,), "float32"))


@pytest.mark.parametrize("kind", [ListSource, ArraySource])
def test_block_holds_its_part_of_the_right_pass(kind: type[ListSource]):
    source = kind(np.zeros(2, np.float32))
    cell, composer = compose(source, STATIC, 4 + 2)
    assert source.log == [(1, 6, True), (0, 6, True), (8, 6, False)]
    assert cell.ids.tolist() == cell.y.tolist() == cell.x[:, 0].tolist() == [1, 0, 8]
    assert cell.is_whole()
    assert composer.samples_made == composer.reads == 3


@pytest.mark.parametrize("kind", [ListSource, ArraySource])
def test_last_block_of_a_pass_is_short(kind: type[ListSource]):
    cell, _ = compose(kind(np.zeros(2, np.float32)), STATIC, 3)
    assert cell.ids[:1].tolist() == [9]
    assert cell.valid.tolist() == [True, False, False]
    assert cell.is_whole()


def test_broken_samples_leave_holes_and_are_named():
    cell, composer = compose(ListSource(np.zeros(2, np.float32), bad=(6,)), STATIC, 0)
    assert cell.valid.tolist() == [True, False, True]
    assert composer.bad == [(6, "f6.png", "truncated")]
    assert (composer.reads, composer.samples_made) == (3, 2)


def test_sample_of_another_shape_or_type_is_an_error_that_names_both():
    with pytest.raises(DataError, match=r"sample 7 has shape \(3,\).*takes \(2\) float32"):
        compose(ListSource(np.zeros(3, np.float32)), STATIC, 0)
    with pytest.raises(DataError, match="type float64"):
        compose(ListSource(np.zeros(2)), STATIC, 0)
    with pytest.raises(DataError, match="type float64"):
        compose(ArraySource(np.zeros(2)), STATIC, 0)


def test_sample_larger_than_its_share_names_sample_bytes_and_key():
    spec = make_spec(SampleSpec.of((None,), "float32", 16))
    compose(ListSource(np.zeros(4, np.float32)), spec, 0)
    with pytest.raises(DataError, match=r"sample 7 has 20 bytes, allowed: at most 16.*max_sample_bytes"):
        compose(ListSource(np.zeros(5, np.float32)), spec, 0)


class Mixed(ListSource):
    """Writes down who is mixed with whom: the sample, and its partner or -1; all samples are one array."""

    mixes = True

    def sample(self, sample_id: int, pass_index: int, training: bool) -> tuple[np.ndarray, np.ndarray]:
        sample, label = super().sample(sample_id, pass_index, training)
        self._memory = getattr(self, "_memory", np.empty_like(sample))
        self._memory[:] = sample
        return self._memory, label

    def mixed(self, sample_id: int, pass_index: int, own: Any, partner: Any) -> tuple[np.ndarray, np.ndarray]:
        assert own[1] == sample_id == own[0][0]
        other = -1 if partner is None else partner[0][0]
        assert other == (-1 if partner is None else partner[1])
        return np.array([sample_id, other], np.float32), own[1]


@pytest.mark.parametrize(
    ("block", "bad", "pairs"),
    [
        (0, (), [(7, 6), (6, 5), (5, 7)]),
        (2, (), [(1, 0), (0, 1), (8, 8)]),  # 8 is for validation
        (0, (6,), [(7, -1), None, (5, 7)]),
        (0, (7,), [None, (6, 5), (5, -1)]),
        (0, (5,), [(7, 6), (6, -1), None]),
        (0, (5, 6, 7), [None, None, None]),
        (3, (), [(9, 9)]),
    ],
)
def test_a_training_sample_is_mixed_with_the_next_one_of_its_block(
    block: int, bad: tuple[int, ...], pairs: list[tuple[int, int] | None]
) -> None:
    cell, composer = compose(Mixed(np.zeros(2, np.float32), bad), STATIC, block)
    num = len(pairs)
    assert cell.valid[:num].tolist() == [pair is not None for pair in pairs]
    for index, pair in enumerate(pairs):
        if pair is not None:
            assert tuple(cell.x[index]) == pair
            assert cell.y[index] == pair[0]
    assert (composer.reads, composer.samples_made) == (num, num - pairs.count(None))


def test_a_sample_alone_in_its_block_is_mixed_with_itself():
    spec = StreamSpec(7, 10, 3, STATIC.sample, STATIC.label, 2**20)
    cell, _ = compose(Mixed(np.zeros(2, np.float32)), spec, 2)
    assert cell.x.tolist() == [[1, 1], [0, 0], [8, 8]]


def test_an_abandoned_block_leaves_nothing_for_the_next_one():
    composer, cell = BlockComposer(STATIC, Mixed(np.zeros(2, np.float32))), Cell.private(STATIC.layout)
    composer.begin(cell, 1, 0, 0)
    composer.step()
    composer.abandon()
    composer.begin(cell, 1, 1, 0)
    while not composer.step():
        pass
    assert cell.x.tolist() == [[4, 3], [3, 2], [2, 4]]
