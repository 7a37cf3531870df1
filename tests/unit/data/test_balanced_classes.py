"""A source whose classes are balanced: its passes, its random operations, and what it needs of a dataset."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from hpcbal.data import LabelSpec, PreprocessedSamples
from hpcbal.data.operations.geometry import RandomCrop
from hpcbal.data.operations.mixing import Mixup
from hpcbal.data.sizes import SizeOrder
from hpcbal.dataplane.cell import Cell
from hpcbal.dataplane.composer import BlockComposer
from hpcbal.dataplane.stream import StreamSpec
from hpcbal.errors import DataError

LABELS = [0] * 30 + [1] * 6 + [2] * 4


def make(dataset: Any, *operations: Any, balanced: bool = True, **options: Any) -> PreprocessedSamples:
    return PreprocessedSamples(
        dataset, operations, seed=1, validation_fraction=0.25, balanced=balanced, **options
    )


@pytest.fixture
def dataset(array_dataset: Any) -> Any:
    samples = np.random.default_rng(5).integers(0, 256, (40, 6, 8, 3)).astype(np.uint8)
    return array_dataset(samples, LABELS)


def test_a_pass_keeps_its_length_and_its_validation_samples(dataset: Any) -> None:
    plain, balanced = make(dataset, balanced=False), make(dataset)
    for number in range(3):
        ids = balanced.ids_of_pass(number)
        np.testing.assert_array_equal(ids[30:], plain.ids_of_pass(number)[30:])
        assert set(ids[:30]) <= set(plain.train_ids.tolist())
        assert np.bincount(np.array(LABELS)[ids[:30]]).tolist() == [10, 10, 10]
    assert plain.moments_of_pass(0) is None
    np.testing.assert_array_equal(balanced.class_counts(), plain.class_counts())  # those of the dataset


def test_lookahead_orders_the_drawn_samples(dataset: Any) -> None:
    dataset.sizes = np.arange(1, 41)
    ahead, balanced = make(dataset, order=SizeOrder(5, 3)), make(dataset)
    ids, moments = ahead.ids_of_pass(2), ahead.moments_of_pass(2)
    other, others = balanced.ids_of_pass(2), balanced.moments_of_pass(2)
    assert moments is not None
    assert others is not None
    assert not np.array_equal(ids, other)
    drawn, expected = (
        sorted(zip(i[:30].tolist(), m.tolist(), strict=True)) for i, m in ((ids, moments), (other, others))
    )
    assert drawn == expected


@pytest.mark.parametrize("operation", [RandomCrop(6, 8, padding=2), Mixup(alpha=1.0)])
def test_repeated_samples_are_preprocessed_anew(dataset: Any, operation: Any) -> None:
    """A block with every sample of the pass: no two draws of one sample are equal, and all passes differ."""
    source = make(dataset, operation)
    label = source.label_spec
    spec = StreamSpec(30, 40, 40, source.sample_spec, label, 2**20)
    composer, made = BlockComposer(spec, source), []
    for number in range(2):
        cell = Cell.private(spec.layout)
        composer.begin(cell, 1, number, 0)
        while not composer.step():
            pass
        assert cell.ids.tolist() == source.ids_of_pass(number).tolist()
        made += [(int(i), x.tobytes()) for i, x in zip(cell.ids[:30], cell.x[:30], strict=True)]
        for i, x in zip(cell.ids[30:], cell.x[30:], strict=True):  # validation samples stay as they are
            np.testing.assert_array_equal(x, dataset.samples[i])
    rare = [pair for pair in made if LABELS[pair[0]] == 2]
    assert len(rare) == 20
    assert len(set(rare)) > 17  # a crop has 25 places, so two draws may agree by chance


def test_the_fingerprint_knows_the_classes(array_dataset: Any, dataset: Any) -> None:
    other = array_dataset(dataset.samples, LABELS[::-1])
    prints = {make(dataset).fingerprint, make(other).fingerprint, make(dataset, balanced=False).fingerprint}
    assert len(prints) == 3
    assert make(dataset).fingerprint in prints


def test_labels_that_are_no_class_are_never_drawn(array_dataset: Any, dataset: Any) -> None:
    labels = [9, *LABELS[1:-1], -1]
    source = make(array_dataset(dataset.samples, labels))
    drawn = np.concatenate([source.ids_of_pass(number)[: source.num_train] for number in range(5)])
    assert not {0, 39} & set(drawn.tolist())


def test_a_dataset_must_list_its_classes(dataset: Any) -> None:
    dataset.labels = None
    with pytest.raises(DataError, match=r"data\.sampling: got 'balanced', but the dataset does not list its"):
        make(dataset)
    dataset.labels = [7] * 40
    with pytest.raises(DataError, match="no training sample has a label that is a class"):
        make(dataset)
    dataset.label_spec, dataset.num_classes = LabelSpec((3,), "float32"), 3
    dataset.labels = np.ones((40, 3), np.float32)
    with pytest.raises(DataError, match=r"labels have shape \(3,\) and type float32, and are no classes"):
        make(dataset)
