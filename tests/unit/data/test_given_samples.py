"""Samples to predict are read as the run reads those of its own dataset, in whatever form they come."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas
import pytest
import torch
from numpy.typing import NDArray
from PIL import Image
from torch.utils.data import Subset, TensorDataset

from hpcbal.data import LabelSpec, SampleSpec, map_style
from hpcbal.data.dataset import UnusableSampleError
from hpcbal.data.evaluation import GivenSamples
from hpcbal.data.held_out import WithOwnValidation
from hpcbal.errors import DataError

RANDOM = np.random.default_rng(0)
IMAGES = RANDOM.random((12, 1, 8, 6), np.float32)
"""Images as PyTorch has them: (n, channels, height, width)."""
LABELS = np.arange(12) % 3
TENSORS = TensorDataset(torch.from_numpy(IMAGES), torch.from_numpy(LABELS))


class Rows:
    """A dataset of hpcbal's own kind."""

    num_classes = 2
    label_spec = LabelSpec((2,), "float32")

    def __init__(self, sample_spec: SampleSpec | None) -> None:
        self.sample_spec = sample_spec

    def __len__(self) -> int:
        return 1

    def read(self, sample_id: int) -> Any:
        raise AssertionError("not needed")

    def describe(self, sample_id: int) -> str:
        return ""


class Broken:
    """A dataset that cannot be read."""

    def __len__(self) -> int:
        return 5

    def __getitem__(self, number: int) -> Any:
        raise OSError(f"file {number} is gone")


def images(given: Any, trained: Any = None) -> NDArray[Any]:
    """The samples as a run reads them that has trained on images of PyTorch."""
    found = GivenSamples(given, map_style(TENSORS) if trained is None else trained)
    return np.stack([np.asarray(found.read(number)[0]) for number in range(len(found))])


@pytest.mark.parametrize(
    "given",
    [
        IMAGES,
        torch.from_numpy(IMAGES),
        list(IMAGES),
        IMAGES.tolist(),
        IMAGES.astype(np.float64),
        TENSORS,
        Subset(TENSORS, range(12)),
        (IMAGES, LABELS),
        (torch.from_numpy(IMAGES), LABELS.tolist()),
        [TENSORS[number] for number in range(12)],
        [{"image": image, "label": 0} for image in IMAGES],
        TensorDataset(torch.from_numpy(IMAGES)),
        np.moveaxis(IMAGES, 1, -1),
    ],
    ids=lambda given: type(given).__name__,
)
def test_images_come_as_in_the_dataset_or_as_preprocessing_sees_them(given: Any) -> None:
    trained: Any = map_style(TENSORS)
    for each in (trained, WithOwnValidation(trained, trained)):
        np.testing.assert_array_equal(images(given, each), np.moveaxis(IMAGES, 1, -1))


def test_a_layout_that_was_set_holds_for_given_samples() -> None:
    gray: Any = map_style((IMAGES[:, 0], LABELS), layout="hw")
    np.testing.assert_array_equal(images(IMAGES[:, 0], gray), IMAGES[:, 0, :, :, np.newaxis])
    with pytest.raises(DataError, match=r"allowed: arrays of shape \(8, 6\) and type float32, as in data"):
        GivenSamples(IMAGES[:, :, :7], gray)
    cubes = RANDOM.random((4, 3, 3, 3), np.float32)  # without a hint, either axis could be that of channels
    np.testing.assert_array_equal(
        images(cubes, map_style((cubes, LABELS[:4]), layout="chw")), np.moveaxis(cubes, 1, -1)
    )


def test_rows_of_tables_are_samples() -> None:
    frame = pandas.DataFrame(IMAGES[:, 0, 0, :3], columns=["a", "b", "c"], index=range(12, 0, -1))
    frame = frame.assign(risk=LABELS, name="Ann")
    numbers = frame[["a", "b", "c"]]
    paired: Any = map_style((numbers, frame["risk"]))
    np.testing.assert_array_equal(images(numbers, paired), numbers.to_numpy())
    np.testing.assert_array_equal(images((numbers, frame["risk"]), paired), numbers.to_numpy())
    named: Any = map_style(frame, sample=["c", "a"], label="risk")
    for given in (frame, frame.drop(columns="risk"), frame.to_dict("records")):
        np.testing.assert_array_equal(images(given, named), frame[["c", "a"]].to_numpy())
    series: Any = pandas.Series(list(IMAGES), index=range(12, 0, -1))
    np.testing.assert_array_equal(images(series), np.moveaxis(IMAGES, 1, -1))


def test_numbers_of_another_kind_are_not_cast() -> None:
    points: Any = Rows(SampleSpec.of((2,), "float32"))
    assert GivenSamples([np.ones(2, np.int64)], points).read(0)[0].dtype == np.float32  # type: ignore[union-attr]
    np.testing.assert_array_equal(GivenSamples([(1.0, 2.0)], points).read(0)[0], [1.0, 2.0])
    np.testing.assert_array_equal(GivenSamples([(1.0, 2.0)], points).read(0)[1], np.zeros(2, np.float32))
    points.sample_spec = SampleSpec.of((2,), "uint8")
    with pytest.raises(
        DataError, match=r"^samples: got an array of shape \(2,\) and type float64, allowed: ar"
    ):
        GivenSamples([np.ones(2)], points)
    assert GivenSamples([np.full(2, 255, np.uint16)], points).read(0)[0].dtype == np.uint8  # type: ignore[union-attr]
    with pytest.raises(UnusableSampleError, match="got numbers from 0 to 256, allowed: those of uint8"):
        GivenSamples([np.array([0, 256], np.uint16)], points).read(0)  # which would become 0 and 0


def test_images_of_pillow_and_encoded_ones() -> None:
    picture = Image.fromarray(np.full((4, 5), 7, np.uint8))
    gray: Any = Rows(SampleSpec.of((4, 5, 1), "uint8"))
    np.testing.assert_array_equal(images([picture], gray), np.full((1, 4, 5, 1), 7, np.uint8))
    encoded: Any = Rows(None)
    assert GivenSamples([b"png"], encoded).read(0)[0] == b"png"
    with pytest.raises(DataError, match=r"type uint8, allowed: encoded images as bytes, as in data.dataset"):
        GivenSamples([picture], encoded)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (None, "got None, allowed: samples in an array or a list, a dataset, "),
        (3, "got a value of type int, allowed: samples in an array or a list, a dataset, "),
        (IMAGES[0], "put a single one into a list"),
        (
            IMAGES[:, :, :7],
            r"got an array of shape \(1, 7, 6\) and type float32, allowed: arrays of shape \(1, 8, ",
        ),
        (["a", "b"], "got a value of type str, allowed: arrays of shape"),
        ((IMAGES, LABELS, LABELS), "got a tuple of length 3 "),
        ((TENSORS, TENSORS), r"got a tuple of length 2 \(TensorDataset, TensorDataset\), allowed: one pair"),
        (iter(IMAGES), "which is of iterable style"),
        (IMAGES[:0], "the dataset has no samples"),
        (
            Broken(),
            r"none of the items that were tried can be read, the first: item 0: .*OSError: file 0 is gone",
        ),
        (pandas.DataFrame({"a": ["x"]}), "column 'a' holds str, allowed: numbers"),
    ],
)
def test_what_is_no_sample_is_refused_in_one_sentence(given: Any, message: str) -> None:
    with pytest.raises(DataError, match=rf"^samples: .*{message}|^samples: {message}") as caught:
        images(given)
    assert "\n" not in str(caught.value)


def test_one_broken_sample_is_no_reason_to_refuse_all() -> None:
    mixed: Any = [None, *IMAGES]
    found = GivenSamples(mixed, map_style(TENSORS))
    with pytest.raises(UnusableSampleError, match="got None"):
        found.read(0)
    np.testing.assert_array_equal(found.read(1)[0], np.moveaxis(IMAGES[0], 0, -1))
