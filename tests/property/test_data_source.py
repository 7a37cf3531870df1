"""Passes hold every sample once; no sample depends on who makes it, or on what was made before."""

from __future__ import annotations

from typing import Any

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from hpcbal.data import LabelSpec, PreprocessedSamples, SampleSpec
from hpcbal.data.operations.geometry import CenterCrop, RandomCrop, RandomFlip, RandomRotation
from hpcbal.data.operations.pixel_values import Normalize


class Noise:
    """Images of noise, always the same for one id."""

    num_classes = 10
    sample_spec = SampleSpec.of((6, 7, 3), "uint8")
    label_spec = LabelSpec()

    def __init__(self, length: int) -> None:
        self._samples = np.random.Generator(np.random.PCG64(1)).integers(0, 256, (length, 6, 7, 3), np.uint8)

    def __len__(self) -> int:
        return len(self._samples)

    def read(self, sample_id: int) -> tuple[NDArray[Any], int]:
        return self._samples[sample_id], sample_id % 10

    def describe(self, sample_id: int) -> str:
        return str(sample_id)


def make(length: int, seed: int, fraction: float = 0.3) -> PreprocessedSamples:
    operations = (RandomCrop(6, 6, padding=1), RandomFlip(True, True), RandomRotation(30), Normalize())
    return PreprocessedSamples(Noise(length), operations, seed=seed, validation_fraction=fraction)


seeds = st.integers(0, 2**32)


@given(st.integers(4, 60), seeds, st.integers(0, 1000), st.floats(0.2, 0.8))
def test_every_pass_holds_every_sample_once(length: int, seed: int, pass_index: int, fraction: float) -> None:
    source = make(length, seed, fraction)
    ids = source.ids_of_pass(pass_index)
    assert ids.dtype == np.int64
    assert sorted(ids.tolist()) == list(range(length))
    first = make(length, seed, fraction).ids_of_pass(0)
    assert set(ids[: source.num_train]) == set(first[: source.num_train])
    np.testing.assert_array_equal(ids[source.num_train :], first[source.num_train :])


@settings(max_examples=20)
@given(seeds, st.integers(0, 50), st.integers(1, 5), st.randoms(use_true_random=False))
def test_samples_do_not_depend_on_how_a_pass_is_divided(
    seed: int, pass_index: int, num_producers: int, random: Any
) -> None:
    """Any number of producers, each with its own source and order of work, makes the same pass."""
    length = 16
    alone = make(length, seed)
    ids = [int(i) for i in alone.ids_of_pass(pass_index)]
    expected = {i: alone.sample(i, pass_index, training=True)[0].copy() for i in ids}
    for part in range(num_producers):
        producer = make(length, seed)
        mine = ids[part::num_producers]
        random.shuffle(mine)
        for sample_id in mine:
            made, label = producer.sample(sample_id, pass_index, training=True)
            np.testing.assert_array_equal(made, expected[sample_id])
            assert label == sample_id % 10


@given(
    st.integers(1, 12), st.integers(1, 12), st.integers(1, 12), st.integers(1, 12), st.integers(0, 3), seeds
)
def test_a_crop_is_a_window_of_the_padded_image(
    rows: int, columns: int, height: int, width: int, padding: int, seed: int
) -> None:
    image = np.arange(1, rows * columns + 1, dtype=np.int32).reshape(rows, columns, 1)
    padded = np.pad(image, ((padding, padding), (padding, padding), (0, 0)))
    if height > padded.shape[0] or width > padded.shape[1]:
        return
    rng = np.random.Generator(np.random.PCG64(seed))
    crop = RandomCrop(height, width, padding).apply(image, rng)
    windows = np.lib.stride_tricks.sliding_window_view(padded[:, :, 0], (height, width))
    assert (windows == crop[:, :, 0]).all(axis=(2, 3)).any()
    if height <= rows and width <= columns:
        centre = CenterCrop(height, width).apply(image)
        np.testing.assert_array_equal(RandomCrop(height, width, padding).apply(image, None), centre)
