"""How large samples are: the dataset says so, or their shapes do."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from hpcbal.data.dataset import BadSample
from hpcbal.data.datasets import generated_series
from hpcbal.data.sizes import SizeOrder, declared_sizes
from hpcbal.data.source import PreprocessedSamples, check_largest
from hpcbal.data.spec import LabelSpec, SampleSpec
from hpcbal.errors import DataError, UserCodeError


class Lines:
    """Samples of 1 to 8 rows, one of them per id; some declare sizes."""

    num_classes = 2
    label_spec = LabelSpec()
    sample_spec: SampleSpec | None = SampleSpec.of((None, 2), "float32", 64)

    def __len__(self) -> int:
        return 8

    def read(self, sample_id: int) -> tuple[np.ndarray, int]:
        return np.ones((sample_id + 1, 2), np.float32), sample_id % 2

    def describe(self, sample_id: int) -> str:
        return f"line {sample_id}"


def with_sizes(sizes: Any) -> Lines:
    lines: Any = Lines()
    lines.sizes = sizes
    return lines


def test_sizes_are_an_array_or_a_function() -> None:
    assert declared_sizes(Lines()) is None
    for sizes in (range(1, 9), np.arange(1, 9), lambda sample_id: sample_id + 1):
        declared = declared_sizes(with_sizes(sizes))
        assert declared is not None
        assert declared.tolist() == list(range(1, 9))


@pytest.mark.parametrize(
    ("sizes", "problem"),
    [
        ([1, 2], "one number for each of the 8"),
        ([1, 2, 3, 0, 5, 6, 7, 8], r"size of sample 3: got 0\.0"),
        (["a"] * 8, r"attribute 'sizes': size of sample 0: got 'a', allowed: a finite number above 0"),
        (lambda i: "7" if i == 2 else 7, r"size of sample 2: got '7', allowed: a finite number above 0"),
        (lambda sample_id: None, r"size of sample 0: got None, allowed: a finite number above 0"),
        ([1, [2, 3], 4, 5, 6, 7, 8, 9], r"size of sample 1: got \[2, 3\], allowed: a finite number"),
        ([1, 2, 3, 4, 5, 6, 7, 10**400], "int too large"),
        (dict.fromkeys(range(1, 9), 5.0), "got a dict, allowed: a number for each sample, in their order"),
        (
            [1, 2, 3, 1e308, 5, 6, 7, 8],
            r"size of sample 3, the largest: got 1e\+308, allowed: at most 1\.25e",
        ),
        (1e306 * np.arange(1, 9), r"sample 7, the largest: got 8e\+306, .*; divide all sizes by the same"),
    ],
)
def test_wrong_sizes_are_refused(sizes: Any, problem: str) -> None:
    with pytest.raises(DataError, match=problem):
        declared_sizes(with_sizes(sizes))


def test_an_error_in_the_function_is_the_users() -> None:
    with pytest.raises(UserCodeError, match=r"attribute 'sizes', called for sample 0: .*no such file"):
        declared_sizes(with_sizes(lambda sample_id: open("no such file")))  # noqa: SIM115


def test_without_declared_sizes_the_lengths_that_differ_count() -> None:
    source = PreprocessedSamples(Lines(), (), seed=0, validation_fraction=0.0)
    samples = [source.sample(sample_id, 0, training=True)[0] for sample_id in (0, 4)]
    assert source.is_sized
    assert source.sizes_of(np.array([0, 4]), samples).tolist() == [1.0, 5.0]
    declared = PreprocessedSamples(with_sizes([10] * 8), (), seed=0, validation_fraction=0.0)
    assert declared.sizes_of(np.array([0, 4]), samples).tolist() == [10.0, 10.0]


def test_lookahead_sorts_batches_together_and_keeps_every_sample() -> None:
    dataset = generated_series(num_samples=100, dif=30)
    plain = PreprocessedSamples(dataset, (), seed=3, validation_fraction=0.2)
    ahead = PreprocessedSamples(dataset, (), seed=3, validation_fraction=0.2, order=SizeOrder(8, 5))
    one, other = plain.ids_of_pass(1), ahead.ids_of_pass(1)
    assert sorted(one.tolist()) == sorted(other.tolist())
    np.testing.assert_array_equal(one[80:], other[80:])
    spread = [np.ptp(dataset.sizes[ids[:80].reshape(10, 8)], axis=1).mean() for ids in (one, other)]
    assert spread[1] < 0.5 * spread[0]
    assert ahead.fingerprint != plain.fingerprint


def test_the_fingerprint_holds_declared_sizes() -> None:
    """They decide on orders, and on who draws what: other sizes on a rank, or on resume, are other data."""
    sizes = (None, range(1, 9), range(2, 10))
    prints = [PreprocessedSamples(with_sizes(each), (), 0, 0.25).fingerprint for each in sizes]
    assert len(set(prints)) == 3
    assert PreprocessedSamples(with_sizes(lambda i: i + 1), (), 0, 0.25).fingerprint == prints[1]


def test_an_empty_sample_is_broken() -> None:
    """A model that takes the mean of its time steps would return NaN."""
    lines: Any = Lines()
    lines.read = lambda sample_id: (np.ones((0, 2), np.float32), 0)
    with pytest.raises(BadSample, match=r"\(line 3\): it is empty \(shape \(0, 2\) after preprocessing\)"):
        PreprocessedSamples(lines, (), 0, 0.25).sample(3, 0, training=True)


def test_lookahead_needs_sizes() -> None:
    with pytest.raises(DataError, match=r"data\.lookahead: got 4, .*give it the attribute 'sizes'"):
        PreprocessedSamples(Lines(), (), seed=0, validation_fraction=0.0, order=SizeOrder(2, 4))


def test_a_sample_above_the_limit_of_work_is_refused_before_training() -> None:
    source = PreprocessedSamples(with_sizes(range(1, 9)), (), seed=0, validation_fraction=0.0)
    check_largest(source, 8.0)
    check_largest(source, None)
    check_largest(PreprocessedSamples(Lines(), (), seed=0, validation_fraction=0.0), 1.0)
    with pytest.raises(DataError, match="got 6, but 2 of 8 samples are larger, the largest with 8: line 7;"):
        check_largest(source, 6.0)
    with pytest.raises(DataError, match=r"1 of 8 samples is larger, .*: line 7; .* leave this sample out"):
        check_largest(source, 7.0)


def test_generated_series_have_the_imbalance_that_was_asked_for() -> None:
    for dif in (0.0, 8.0, 16.0):
        sizes = generated_series(num_samples=4000, dif=dif).sizes
        assert sizes.mean() == pytest.approx(45.0, rel=0.02)
        assert sizes.std() == pytest.approx(dif, abs=0.3)
    dataset = generated_series(num_samples=10, dif=16)
    sample, label = dataset.read(3)
    assert sample.shape == (dataset.sizes[3], 3)
    np.testing.assert_array_equal(sample, dataset.read(3)[0])
    assert 0 <= label < 4
    with pytest.raises(DataError, match=r"num_classes 1.*allowed"):
        generated_series(num_classes=1)
