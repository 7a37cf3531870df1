"""The model of the emulated backend checks its arguments and picks its features."""

from __future__ import annotations

import numpy as np
import pytest

from hpcbal.models import EmulatedModel, softmax


def test_large_samples_are_thinned_out() -> None:
    model = softmax((64, 64, 3), 10, max_features=100)
    assert model.num_features == 100
    x = np.arange(64 * 64 * 3, dtype=np.float64).reshape(1, 64, 64, 3)
    picked = model.features(x, np.dtype("float64"))[0]
    assert picked[0] == 0
    assert np.all(np.diff(picked) >= 122)


def test_small_samples_are_taken_whole() -> None:
    x = np.random.default_rng(0).normal(size=(2, 3, 2))
    np.testing.assert_array_equal(softmax((3, 2), 2).features(x, np.dtype("float64")), x.reshape(2, 6))


@pytest.mark.parametrize(("features", "classes"), [(0, 2), (3, 1)])
def test_senseless_sizes_are_refused(features: int, classes: int) -> None:
    with pytest.raises(ValueError, match=r"allowed: >= 1 and >= 2"):
        EmulatedModel(features, classes)
