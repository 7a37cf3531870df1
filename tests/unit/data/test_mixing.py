"""Mixup and cutmix against plain arithmetic, and what a source does with them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hpcbal.data import LabelSpec, PreprocessedSamples, SampleSpec
from hpcbal.data.operations.base import OperationError
from hpcbal.data.operations.geometry import RandomFlip
from hpcbal.data.operations.mixing import CutMix, MixingOperation, Mixup
from hpcbal.data.operations.pixel_values import Normalize
from hpcbal.errors import ConfigError, DataError


def generator(seed: int = 0) -> np.random.Generator:
    return np.random.Generator(np.random.PCG64(seed))


@pytest.fixture
def images() -> np.ndarray:
    return generator(5).integers(0, 256, (12, 6, 8, 3), np.uint8)


def make(dataset: Any, *operations: Any, seed: int = 1, **kwargs: Any) -> PreprocessedSamples:
    return PreprocessedSamples(dataset, operations, seed=seed, validation_fraction=0.25, **kwargs)


def mixed(source: PreprocessedSamples, own: int, other: int | None, pass_index: int = 0) -> Any:
    pair = [
        None if i is None else tuple(a.copy() for a in source.sample(i, pass_index, True))
        for i in (own, other)
    ]
    return source.mixed(own, pass_index, pair[0], pair[1])  # type: ignore[arg-type]


@given(
    dtype=st.sampled_from(["uint8", "int16", "int32", "float16", "float32", "float64"]),
    seed=st.integers(0, 1000),
)
def test_mixup_is_the_weighted_mean(dtype: str, seed: int) -> None:
    rng = generator(seed)
    low, high = (0, 256) if dtype == "uint8" else (-1000, 1000)
    own, other = (rng.integers(low, high, (4, 5)).astype(dtype) for _ in range(2))
    result, weight = Mixup(alpha=1.0).mix(own, other, generator(seed))
    assert weight == generator(seed).beta(1.0, 1.0)
    expected = weight * own.astype(float) + (1 - weight) * other.astype(float)
    assert result.dtype == dtype
    rounding = 0.51 if dtype[0] in "iu" else 0.5 if dtype == "float16" else 1e-3
    np.testing.assert_allclose(result, expected, atol=rounding)


@given(height=st.integers(1, 9), width=st.integers(1, 9), seed=st.integers(0, 1000))
def test_cutmix_takes_a_rectangle_and_weighs_by_area(height: int, width: int, seed: int) -> None:
    own, other = np.zeros((height, width, 2), np.uint8), np.ones((height, width, 2), np.uint8)
    result, weight = CutMix().mix(own, other, generator(seed))
    taken = result.any(axis=2)
    assert weight == pytest.approx(1 - taken.mean())
    rows, columns = taken.any(axis=1), taken.any(axis=0)
    assert taken.sum() == rows.sum() * columns.sum()
    for line in (rows, columns):  # neighbours
        assert not line.any() or line[np.argmax(line) : len(line) - np.argmax(line[::-1])].all()
    assert (result[:, :, 0] == result[:, :, 1]).all()


def test_the_area_of_cutmix_follows_its_beta_distribution() -> None:
    """Without the border: rectangles whose centre is far from it keep their area."""
    own, other = np.zeros((60, 60, 1), np.uint8), np.ones((60, 60, 1), np.uint8)
    rng = generator()
    areas = np.array([1 - CutMix(alpha=1.0).mix(own, other, rng)[1] for _ in range(400)])
    # A uniform area u, cut by the border to (s - s**2 / 4)**2 in the mean, with side s = sqrt(u).
    sides = np.sqrt((np.arange(1000) + 0.5) / 1000)
    assert areas.mean() == pytest.approx(np.mean((sides - sides**2 / 4) ** 2), abs=0.04)


def test_labels_become_distributions_and_validation_is_not_mixed(array_dataset: Any, images: Any) -> None:
    source = make(array_dataset(images), Mixup(alpha=1.0))
    assert source.mixes
    assert source.label_spec == LabelSpec((3,), "float32")
    assert source.sample_spec == SampleSpec.of((6, 8, 3), "uint8")
    x, y = mixed(source, 4, 6)  # classes 1 and 0
    weight = float(y[1])
    assert 0 < weight < 1
    np.testing.assert_allclose(y, [1 - weight, weight, 0], atol=1e-6)
    assert (y.shape, y.dtype) == ((3,), np.float32)
    np.testing.assert_allclose(x, weight * images[4].astype(float) + (1 - weight) * images[6], atol=0.51)
    x, y = source.sample(4, 0, training=False)
    np.testing.assert_array_equal(x, images[4])
    np.testing.assert_array_equal(y, [0, 1, 0])
    x, y = mixed(source, 4, None)
    np.testing.assert_array_equal(x, images[4])
    np.testing.assert_array_equal(y, [0, 1, 0])


def test_floating_point_labels_are_averaged(array_dataset: Any, images: Any) -> None:
    class Heights(array_dataset):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__(images)
            self.label_spec = LabelSpec((2,), "float64")

        def read(self, sample_id: int) -> Any:
            return images[sample_id], np.array([sample_id, -sample_id], float)

    source = make(Heights(), CutMix())
    assert source.label_spec == LabelSpec((2,), "float64")
    x, y = mixed(source, 4, 6)
    part = (x == images[6]).all(axis=2).mean()
    np.testing.assert_allclose(y, [4 + 2 * part, -4 - 2 * part], atol=0.02)


def test_other_labels_and_samples_of_unequal_shape_are_refused(array_dataset: Any, images: Any) -> None:
    dataset = array_dataset(images)
    dataset.label_spec = LabelSpec((6, 8), "int64")
    with pytest.raises(DataError, match=r"preprocessing: mixup and cutmix: .* allowed: one class for each"):
        make(dataset, Mixup(), CutMix())
    dataset.label_spec = LabelSpec((6, 8), "float32")  # of each pixel
    with pytest.raises(DataError, match=r"preprocessing: cutmix: .* each place of an image, .* use mixup"):
        make(dataset, Mixup(), CutMix())
    make(dataset, Mixup())
    dataset = array_dataset(images)
    dataset.sample_spec = SampleSpec.of((None, 8, 3), "uint8", 1000)
    with pytest.raises(ConfigError, match=r"preprocessing\.0\.mixup: needs samples of one shape, got \(any"):
        make(dataset, Mixup())
    with pytest.raises(OperationError, match="cutmix: needs images"):
        CutMix().output_spec(SampleSpec.of((7,), "float32"))
    with pytest.raises(OperationError, match="mixup: needs samples of numbers"):
        Mixup().output_spec(SampleSpec.of((7,), "bool"))


@pytest.mark.parametrize("operation", [Mixup(alpha=0.7), CutMix()], ids=["mixup", "cutmix"])
def test_normalizing_on_the_host_or_the_device_gives_the_same(
    array_dataset: Any, images: Any, operation: MixingOperation
) -> None:
    norm = Normalize(mean=0.4, std=0.2)
    here = make(array_dataset(images), RandomFlip(), operation, norm)
    there = make(array_dataset(images), RandomFlip(), operation, norm, on_device=True)
    assert there.sample_spec.dtype == "uint8"
    assert here.sample_spec.dtype == "float32"
    for pair in ((3, 4), (3, None)):
        x, y = mixed(here, *pair)
        bytes_, label = mixed(there, *pair)
        np.testing.assert_array_equal(x, norm.apply(bytes_))
        np.testing.assert_array_equal(y, label)
    x, _ = here.sample(3, 0, training=False)
    np.testing.assert_array_equal(x, norm.apply(images[3]))
    before = make(array_dataset(images), RandomFlip(), norm, operation, on_device=True)
    assert before.sample_spec.dtype == "float32"  # mixed as numbers, without rounding
    np.testing.assert_allclose(mixed(before, 3, 4)[0], mixed(here, 3, 4)[0], atol=0.51 / 255 / 0.2)


def test_what_is_drawn_depends_on_seed_pass_and_sample(array_dataset: Any, images: Any) -> None:
    source = make(array_dataset(images), Mixup(alpha=1.0))
    weights = {
        (seed, pass_index, own): float(
            mixed(make(array_dataset(images), Mixup(alpha=1.0), seed=seed), own, 6, pass_index)[1][own % 3]
        )
        for seed in (1, 2)
        for pass_index in (0, 1)
        for own in (4, 5)
    }
    assert len(set(weights.values())) == 8
    for own in (5, 4):
        assert float(mixed(source, own, 6)[1][own % 3]) == weights[1, 0, own]


def test_each_sample_gets_one_of_two_operations(array_dataset: Any, images: Any) -> None:
    source = make(array_dataset(images), Mixup(alpha=1.0), CutMix(alpha=1.0, p=0.5))
    kinds = []
    for pass_index in range(200):
        x, _ = mixed(source, 4, 6, pass_index)
        own, other = (x == images[4]).all(axis=2), (x == images[6]).all(axis=2)
        kinds.append("none" if own.all() else "cutmix" if (own | other).all() else "mixup")
    assert 75 < kinds.count("mixup") < 125
    assert 25 < kinds.count("cutmix") < 75
    assert 25 < kinds.count("none") < 80


def test_mixing_is_part_of_the_fingerprint(array_dataset: Any, images: Any) -> None:
    lists: list[list[Any]] = [[], [Mixup()], [Mixup(alpha=0.3)], [CutMix()], [Mixup(), CutMix()]]
    assert len({make(array_dataset(images), *operations).fingerprint for operations in lists}) == 5


@pytest.mark.parametrize("kind", [Mixup, CutMix])
def test_wrong_arguments_are_named(kind: Any) -> None:
    with pytest.raises(OperationError, match=rf"{kind.name}.alpha: got 0, allowed: a number above 0"):
        kind(alpha=0)
    with pytest.raises(OperationError, match=rf"{kind.name}.p: got 2, allowed: 0 < p <= 1"):
        kind(p=2)
