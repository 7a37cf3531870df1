"""A worker holds copies of some samples of a dataset, and returns them as the dataset did."""

from __future__ import annotations

import numpy as np
import pytest

from hpcbal.data import PreprocessedSamples, digits
from hpcbal.data.dataset import HeldSamples
from hpcbal.errors import HpcbalError


def test_samples_are_added_and_removed() -> None:
    dataset = digits()
    held = HeldSamples(dataset)
    assert (len(held), len(held.ids), held.num_bytes) == (len(dataset), 0, 0)
    raw, label = dataset.read(5)
    held.put(5, raw, label)
    held.put(5, raw, label)  # again: the same sample, held once
    held.put(3, *dataset.read(3))
    assert held.ids.tolist() == [3, 5]
    assert held.num_bytes == 2 * np.asarray(raw).nbytes
    found, found_label = held.read(5)
    np.testing.assert_array_equal(found, raw)
    assert not np.shares_memory(found, raw)
    assert (found_label, found_label.dtype) == (label, np.dtype(dataset.label_spec.dtype))
    held.drop(5)
    held.drop(5)
    assert (held.ids.tolist(), 5 in held, 3 in held) == ([3], False, True)
    with pytest.raises(HpcbalError, match="sample 5 was read, but this worker does not hold it"):
        held.read(5)


def test_bytes_are_counted_too() -> None:
    held = HeldSamples(digits())
    held.put(1, b"abc", 2)
    assert held.read(1) == (b"abc", np.array(2))
    assert held.num_bytes == 3


def test_a_source_over_held_samples_preprocesses_as_the_whole_one() -> None:
    source = PreprocessedSamples(digits(), [], seed=3, validation_fraction=0.2)
    held = HeldSamples(source.dataset)
    part = source.over(held)
    sample_id = int(source.train_ids[7])
    held.put(sample_id, *source.read(sample_id))
    for found, wanted in zip(part.sample(sample_id, 2, True), source.sample(sample_id, 2, True), strict=True):
        np.testing.assert_array_equal(found, wanted)
    assert part.fingerprint == source.fingerprint
    ids = np.concatenate([source.train_ids, source.validation_ids])
    assert sorted(ids.tolist()) == list(range(len(source.dataset)))
