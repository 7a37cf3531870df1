"""Datasets for other tasks than naming one class."""

from __future__ import annotations

import numpy as np
import pytest

from hpcbal.data import diabetes, digit_scenes
from hpcbal.errors import DataError


def test_the_diabetes_study_has_one_standardised_number_for_each_patient() -> None:
    dataset = diabetes()
    assert (len(dataset), dataset.num_classes) == (442, 1)
    assert (dataset.label_spec.shape, dataset.label_spec.dtype) == ((), "float32")
    labels = np.array([dataset.read(i)[1] for i in range(442)])
    assert labels.mean() == pytest.approx(0.0, abs=1e-6)
    assert labels.std() == pytest.approx(1.0, rel=1e-5)
    sample, _ = dataset.read(3)
    assert (sample.shape, sample.dtype) == ((10,), np.float32)


def test_a_scene_is_the_same_in_every_process_and_its_labels_belong_to_it() -> None:
    tags, ink = digit_scenes("digits", 50), digit_scenes("ink", 50)
    for number in (0, 7, 49):
        scene, present = tags.read(number)
        same, mask = ink.read(number)
        np.testing.assert_array_equal(scene, same)
        np.testing.assert_array_equal(scene, digit_scenes("digits", 50).read(number)[0])
        assert (scene.shape, scene.dtype) == ((32, 32, 3), np.uint8)
        assert 1 <= present.sum() <= 3
        assert mask.shape == (32, 32)
        assert set(np.unique(mask)) == {0, 1}
        written = scene[mask == 1]
        assert len(np.unique(written[written.std(axis=1) == 0])) >= 1, "full ink is white or black"
    assert tags.fingerprint != digit_scenes("digits", 50, seed=1).fingerprint


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"label": "tags"}, "label: got 'tags', allowed: digits, ink"),
        ({"size": 15}, "allowed: >= 1, >= 1 and 16 to 427"),
        ({"num_samples": 0}, "got num_samples 0"),
    ],
)
def test_wrong_arguments_of_scenes_are_named(given: dict[str, object], message: str) -> None:
    with pytest.raises(DataError, match=message):
        digit_scenes(**given)  # type: ignore[arg-type]
