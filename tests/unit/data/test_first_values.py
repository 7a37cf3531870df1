"""A few samples show what is wrong with the values that networks would get."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from hpcbal.data import PreprocessedSamples
from hpcbal.data.first_samples import doubts_about_values
from hpcbal.data.pipeline import build_operations
from hpcbal.errors import DataError

RNG = np.random.default_rng(0)
BYTES = RNG.integers(0, 256, (30, 6, 6, 3), np.uint8)
STANDARD = RNG.normal(size=(30, 5)).astype(np.float32)
RIGHT = {"mean": 0.5, "std": 0.29}


def doubts(array_dataset: Any, samples: Any, *normalisations: dict[str, float]) -> tuple[str, ...]:
    operations = build_operations([("normalize", args) for args in normalisations])
    source = PreprocessedSamples(array_dataset(samples), operations, 0, validation_fraction=0.2)
    return doubts_about_values(source, is_normalised=bool(normalisations))


@pytest.mark.parametrize(
    ("samples", "normalisations", "words"),
    [
        (BYTES, (), "are 0 to 255, with mean"),
        (BYTES, ({"mean": 127.0, "std": 74.0},), "mean and std must be in the units that it gets"),
        (BYTES, (RIGHT, RIGHT), "once is enough"),
        (STANDARD * 1e6, (), "add it, unless the network scales its inputs itself"),
    ],
    ids=["not at all", "means in bytes", "twice", "large features"],
)
def test_values_that_networks_train_badly_on_cause_one_warning(
    array_dataset: Any, samples: Any, normalisations: tuple[dict[str, float], ...], words: str
) -> None:
    (warning,) = doubts(array_dataset, samples, *normalisations)
    assert words in warning
    assert "(of 8 samples)" in warning


def test_one_large_feature_among_many_is_named(array_dataset: Any) -> None:
    samples = np.zeros((30, 40_000), np.float32)
    samples[:, 17] = RNG.normal(size=30) * 30
    samples[:, 7_000] = 50 + RNG.normal(size=30)
    (warning,) = doubts(array_dataset, samples)
    assert warning.startswith("values of feature 7000 (of 40000) after preprocessing are 4")
    channels = RNG.normal(size=(30, 6, 6, 3)) + np.array([0.0, 0.0, 6.0])
    (warning,) = doubts(array_dataset, channels.astype(np.float32))
    assert warning.startswith("values of feature 2 (of 3)")


def rare_words() -> Any:
    """Standardised columns that are large in one sample of a hundred."""
    return np.where(RNG.random((30, 500)) < 0.01, 10.0, -0.1).astype(np.float32)


@pytest.mark.parametrize(
    ("samples", "normalisations"),
    [
        (BYTES, (RIGHT,)),
        (rare_words(), ()),
        (BYTES, ({},)),
        (STANDARD, ()),
        (np.zeros((30, 50), np.float32), ()),
        (RNG.integers(0, 30_000, (30, 9), np.int32), ()),
    ],
    ids=["normalised", "rare words", "0 to 1", "standardised", "sparse", "words"],
)
def test_other_values_cause_none(
    array_dataset: Any, samples: Any, normalisations: tuple[dict[str, float], ...]
) -> None:
    assert doubts(array_dataset, samples, *normalisations) == ()


@pytest.mark.parametrize("mixing", [[], [("mixup", {})]], ids=["classes", "shares of classes"])
def test_listed_labels_that_are_not_those_of_the_samples_are_refused(array_dataset: Any, mixing: Any) -> None:
    dataset = array_dataset(STANDARD, labels=[2, *[0, 1, 2] * 9, 1, 0])
    source = PreprocessedSamples(dataset, build_operations(mixing), 0, validation_fraction=0.2)
    assert doubts_about_values(source, is_normalised=False) == ()
    dataset.labels = sorted(dataset.labels)
    dataset.read = lambda number: (STANDARD[number], [2, *[0, 1, 2] * 9, 1, 0][number])
    with pytest.raises(
        DataError, match=r"labels has class \d for sample (\d+), but read\(\1\) returns class"
    ):
        doubts_about_values(source, is_normalised=False)
