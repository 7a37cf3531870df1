"""Augmented samples depend on seed, list, moment and sample alone, and are those of one pipeline."""

from __future__ import annotations

from typing import Any

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from hpcbal.config import DnnConfig
from hpcbal.data import LabelSpec, PreprocessedSamples, SampleSpec, build_operations
from hpcbal.data.augmentation import Augmentation
from hpcbal.data.pipeline import Pipeline, SampleStreams

SIZE = 6
RAW = SampleSpec.of((8, 8, 3), "uint8")
RANDOM: list[dict[str, dict[str, Any]]] = [
    {"random_crop": {"height": SIZE, "width": SIZE, "padding": 2}},
    {"random_flip": {"horizontal": True, "vertical": True}},
    {"random_rotation": {"degrees": 20}},
    {"random_brightness": {"factor": 0.3}},
    {"random_contrast": {"factor": 0.3}},
    {"color_jitter": {"brightness": 0.3, "hue": 0.1}},
    {"random_erasing": {"p": 0.7}},
    {"cutout": {"size": 3}},
]
SHARED = [{"center_crop": {"height": SIZE, "width": SIZE}}]

seeds = st.integers(0, 2**32)
lists = st.lists(st.sampled_from(RANDOM), min_size=1, max_size=4)
samples = st.tuples(st.integers(0, 2**40), st.integers(0, 2**40), st.integers(0, 99))
"""Of a sample: its id, the moment, and which image it is."""


def dnn(operations: list[dict[str, Any]], name: str = "a", batch_size: int = 8) -> DnnConfig:
    keys = {"optimizer": {"name": "sgd", "learning_rate": 0.1}, "stop": {"max_epochs": 1}}
    return DnnConfig.model_validate(
        {"name": name, "model": "m:f", "batch_size": batch_size, "augment": operations, **keys}
    )


def made(operations: list[dict[str, Any]]) -> Any:
    return build_operations([(name, args) for step in operations for name, args in step.items()])


def raw(number: int) -> Any:
    return np.random.default_rng(number).integers(0, 256, RAW.shape, np.uint8)


@settings(max_examples=60, deadline=None)
@given(lists, seeds, samples)
def test_samples_are_those_of_one_pipeline_with_the_same_draws(
    operations: list[dict[str, Any]], seed: int, sample: tuple[int, int, int]
) -> None:
    sample_id, moment, number = sample
    shared = Pipeline(made(SHARED), RAW)
    augmentation = Augmentation(dnn(operations), shared.host_spec, seed)
    got = augmentation.apply(shared.run(raw(number), None), sample_id, moment)
    whole = Pipeline(made([*SHARED, *operations]), RAW)
    wanted = whole.run(raw(number), augmentation._streams.stream(moment, sample_id))
    np.testing.assert_array_equal(got, wanted)
    assert got.dtype == wanted.dtype


@settings(max_examples=40, deadline=None)
@given(lists, seeds, st.lists(samples, min_size=1, max_size=8), st.randoms(use_true_random=False))
def test_draws_depend_on_seed_list_moment_and_sample_alone(
    operations: list[dict[str, Any]], seed: int, chosen: list[tuple[int, int, int]], random: Any
) -> None:
    """Not on the DNN, on the order of samples, or on what else was drawn."""
    spec = SampleSpec.of((SIZE, SIZE, 3), "uint8")
    image = raw(0)[:SIZE, :SIZE]
    one = Augmentation(dnn(operations), spec, seed)
    expected = {each: one.apply(image, each[0], each[1]) for each in chosen}
    other = Augmentation(dnn(operations, "other", 3), spec, seed)
    random.shuffle(chosen)
    for each in chosen:
        np.testing.assert_array_equal(other.apply(image, each[0], each[1]), expected[each])


@settings(max_examples=40, deadline=None)
@given(lists, lists, seeds, st.integers(0, 9), st.integers(0, 9))
def test_other_lists_seeds_moments_and_samples_draw_other_numbers(
    operations: list[dict[str, Any]], others: list[dict[str, Any]], seed: int, moment: int, sample_id: int
) -> None:
    spec = SampleSpec.of((SIZE, SIZE, 3), "uint8")

    def draws(listed: list[dict[str, Any]], a_seed: int, at: int, of: int) -> list[float]:
        return Augmentation(dnn(listed), spec, a_seed)._streams.stream(at, of).random(4).tolist()

    own = draws(operations, seed, moment, sample_id)
    assert own != draws(operations, seed + 1, moment, sample_id)
    assert own != draws(operations, seed, moment + 1, sample_id)
    assert own != draws(operations, seed, moment, sample_id + 1)
    assert (own == draws(others, seed, moment, sample_id)) == (operations == others)
    assert own != SampleStreams(seed).stream(moment, sample_id).random(4).tolist()  # of preprocessing


def test_defaults_that_are_written_out_draw_the_same() -> None:
    spec = SampleSpec.of((SIZE, SIZE, 3), "uint8")
    short, long = [{"random_flip": {}}], [{"random_flip": {"vertical": False, "horizontal": True}}]
    first, second = (
        Augmentation(dnn(each), spec, 3)._streams.stream(1, 2).random() for each in (short, long)
    )
    assert first == second


class Labelled:
    """A dataset with one image that is read."""

    num_classes = 2
    label_spec = LabelSpec()
    sample_spec = RAW

    def __len__(self) -> int:
        return 10

    def read(self, sample_id: int) -> Any:
        return raw(sample_id), 0

    def describe(self, sample_id: int) -> str:
        return str(sample_id)


@settings(max_examples=20, deadline=None)
@given(lists, seeds, st.integers(0, 9))
def test_a_normalize_on_the_device_comes_after(
    operations: list[dict[str, Any]], seed: int, sample_id: int
) -> None:
    """As it would at the end of one pipeline: mean and zeros of a padded crop are those of bytes."""
    normalize = {"normalize": {"mean": 0.4, "std": 0.2}}
    source = PreprocessedSamples(Labelled(), made([*SHARED, normalize]), seed, 0.2, on_device=True)
    augmentation = Augmentation(dnn(operations), source.sample_spec, seed)
    sample, _ = source.sample(sample_id, 0, training=True)
    sample = augmentation.apply(sample, sample_id, 0)
    assert sample.dtype == np.uint8
    for operation in source.on_device:
        sample = operation.apply(sample)
    whole = Pipeline(made([*SHARED, *operations, normalize]), RAW)
    wanted = whole.run(raw(sample_id), augmentation._streams.stream(0, sample_id))
    np.testing.assert_array_equal(sample, wanted)
