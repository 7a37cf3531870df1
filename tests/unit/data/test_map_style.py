"""Datasets of other libraries are read by rules, and what has no one meaning is refused in one sentence."""

from __future__ import annotations

import random
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from PIL import Image
from torch.utils.data import ConcatDataset, DataLoader, IterableDataset, Subset, TensorDataset

from hpcbal.config import load_config
from hpcbal.data import BadSample, LabelSpec, PreprocessedSamples, SampleSpec, map_style, open_source
from hpcbal.data.held_out import WithOwnValidation, of_same_kind, open_dataset
from hpcbal.data.operations.pixel_values import Normalize
from hpcbal.data.pipeline import build_operations
from hpcbal.errors import DataError, UserCodeError

EXAMPLES = Path(__file__).parents[3] / "docs/examples"
RANDOM = np.random.default_rng(0)
IMAGES = RANDOM.random((40, 3, 8, 6), np.float32)
"""Images as PyTorch has them: (n, channels, height, width)."""
LABELS = np.arange(40) % 4


class Items(torch.utils.data.Dataset[Any]):
    """A dataset of map style with the items of a list, or made by a function."""

    def __init__(self, items: list[Any] | Callable[[int], Any], length: int = 40, **members: Any) -> None:
        self._items, self._length = items, length
        self.__dict__.update(members)

    def __len__(self) -> int:
        return self._length if callable(self._items) else len(self._items)

    def __getitem__(self, number: int) -> Any:
        return self._items(number) if callable(self._items) else self._items[number]


class ClassLabel:
    """A feature of Hugging Face's columns."""

    def __init__(self, names: list[str]) -> None:
        self.names = names


class FaceDataset:
    """As much of `datasets.Dataset` as hpcbal uses; the library is too large to install for tests."""

    def __init__(
        self, columns: dict[str, list[Any]], features: dict[str, Any], as_arrays: bool = False
    ) -> None:
        self._columns, self.features, self._as_arrays = columns, features, as_arrays

    def __len__(self) -> int:
        return len(next(iter(self._columns.values())))

    def __getitem__(self, key: int | slice) -> dict[str, Any]:
        found = {name: column[key] for name, column in self._columns.items()}
        return {name: np.asarray(each) for name, each in found.items()} if self._as_arrays else found

    def select_columns(self, names: list[str]) -> FaceDataset:
        return FaceDataset({name: self._columns[name] for name in names}, self.features)

    def with_format(self, kind: str) -> FaceDataset:
        assert kind == "numpy"
        return FaceDataset(self._columns, self.features, as_arrays=True)


def pillow(mode: str, height: int = 5, width: int = 7) -> Image.Image:
    return Image.fromarray(RANDOM.integers(0, 256, (height, width, 3), np.uint8)).convert(mode)


def refusal(given: Any, **options: Any) -> str:
    with pytest.raises(DataError) as caught:
        map_style(given, **options)
    message = str(caught.value)
    assert message.startswith("map_style: ")
    assert "\n" not in message
    return message.removeprefix("map_style: ")


def fingerprint(given: Any, **options: Any) -> str:
    return PreprocessedSamples(map_style(given, **options), [], 0, 0.2, max_sample_bytes=1000).fingerprint


@pytest.mark.parametrize("made", [lambda array: array, torch.from_numpy], ids=["NumPy", "PyTorch"])
def test_a_pair_of_arrays_is_a_dataset(made: Callable[[Any], Any]) -> None:
    dataset = map_style((made(IMAGES), made(LABELS)))
    assert (len(dataset), dataset.num_classes, dataset.label_spec) == (40, 4, LabelSpec())
    assert dataset.sample_spec == SampleSpec.of((8, 6, 3), "float32")
    assert dataset.labels is not None
    assert dataset.labels.tolist() == LABELS.tolist()
    image, label = dataset.read(7)
    np.testing.assert_array_equal(image, np.moveaxis(IMAGES[7], 0, 2))
    assert (label, dataset.describe(7)) == (3, "Pair[7]")
    assert dataset.notes == (
        "arrays were taken for images with the channels first, and become (8, 6, 3) float32",
    )


@pytest.mark.parametrize("kind", ["uint8", "float32"])
def test_masked_values_of_a_pair_are_missing(kind: str) -> None:
    """As netCDF readers return them; any number stands in their place."""
    samples = np.ma.masked_array(RANDOM.random((40, 5), np.float32), False)
    samples[4, 1] = np.ma.masked
    dataset = map_style((samples, np.ma.masked_equal(LABELS.astype(kind), 3)))
    assert dataset.label_spec.dtype == ("int64" if kind == "uint8" else "float32")
    source = PreprocessedSamples(dataset, [], 0, 0.2)
    source.sample(5, 0, training=True)
    for number, masked in ((4, "1 of 5"), (7, "1 of 1")):
        with pytest.raises(
            BadSample, match=f"Pair\\[{number}\\]\\): {masked} values are masked, allowed: none"
        ):
            source.sample(number, 0, training=True)
    doubts = [*source.doubts(), *dataset.remarks]
    expected = "-1 to 2, allowed: 0 to 2, so 10" if kind == "uint8" else "10 of 40 labels are missing"
    assert len(doubts) == 1
    assert expected in doubts[0]


@pytest.mark.parametrize(
    ("shape", "layout", "expected"),
    [
        ((8, 6, 3), None, (8, 6, 3)),
        ((8, 6, 1), None, (8, 6, 1)),
        ((1, 8, 6), None, (8, 6, 1)),
        ((4, 8, 6), None, (8, 6, 4)),
        ((5, 8, 6), "chw", (8, 6, 5)),
        ((5, 8, 6), "keep", (5, 8, 6)),
        ((1, 8, 3), "chw", (8, 3, 1)),
        ((3, 8, 6), "keep", (3, 8, 6)),
        ((8, 6), None, (8, 6)),
        ((8, 6), "hw", (8, 6, 1)),
        ((9,), None, (9,)),
        ((3, 4, 8, 6), None, (3, 4, 8, 6)),
    ],
)
def test_the_axis_of_channels_comes_last(shape: Any, layout: Any, expected: Any) -> None:
    dataset = map_style((np.zeros((10, *shape), np.uint8), LABELS[:10]), layout=layout)
    assert dataset.sample_spec == SampleSpec.of(expected, "uint8")
    assert dataset.read(3)[0].shape == expected  # type: ignore[union-attr]
    assert bool(dataset.notes) is (layout is None and expected != shape)


@pytest.mark.parametrize(
    ("shape", "layout", "message"),
    [
        (
            (5, 8, 6),
            None,
            "an array of shape (5, 8, 6) has no one meaning: neither its first nor its last axis",
        ),
        ((1, 8, 3), None, "an array of shape (1, 8, 3) has no one meaning: both its first and its last axis"),
        ((8, 6), "chw", "of shape (8, 6) and type uint8, allowed with layout chw: 3 axes"),
        ((8, 6, 3), "hw", "allowed with layout hw: 2 axes"),
        ((8, 6, 3), "hwc", "layout: got 'hwc', allowed: chw, hw, keep, or null"),
    ],
)
def test_a_layout_that_has_no_one_meaning_is_refused(shape: Any, layout: Any, message: str) -> None:
    assert message in refusal((np.zeros((10, *shape), np.uint8), LABELS[:10]), layout=layout)


def test_numbers_of_16_bits_that_numpy_lacks_become_float32() -> None:
    short = torch.from_numpy(IMAGES).bfloat16()
    dataset = map_style((short, LABELS))
    assert dataset.sample_spec == SampleSpec.of((8, 6, 3), "float32")
    np.testing.assert_array_equal(dataset.read(7)[0], np.moveaxis(short[7].float().numpy(), 0, 2))
    of_numpy = IMAGES.astype(ml_dtypes.bfloat16)
    np.testing.assert_array_equal(map_style((of_numpy, LABELS)).read(7)[0], dataset.read(7)[0])


def test_items_of_pytorch_with_labels_as_tensors_and_names() -> None:
    tensors = torch.from_numpy(IMAGES).requires_grad_()
    whole = Items(lambda number: (tensors[number], torch.tensor(number % 4)), classes=["a", "b", "c", "d"])
    array = Items(whole._items, classes=np.array(["a", "b", "c", "d"]))
    assert map_style(array).class_names == ("a", "b", "c", "d")
    part = Subset(whole, [5, 2, 9])
    for dataset in (map_style(whole), map_style(part)):
        assert (dataset.num_classes, dataset.class_names) == (4, ("a", "b", "c", "d"))
        assert dataset.labels is None
    image, label = map_style(part).read(2)
    np.testing.assert_array_equal(image, np.moveaxis(IMAGES[9], 0, 2))
    assert (label.shape, label.dtype, int(label)) == ((), np.int64, 1)


def test_labels_are_known_without_reading_all_items() -> None:
    tensors = TensorDataset(torch.from_numpy(IMAGES), torch.from_numpy(LABELS))
    half = Subset(tensors, range(0, 40, 2))
    nested = Subset(half, [3, 1])
    both = ConcatDataset([nested, half])
    for given, expected in (
        (tensors, LABELS),
        (half, LABELS[::2]),
        (nested, [2, 2]),
        (both, [2, 2, *LABELS[::2]]),
    ):
        found = map_style(given)
        assert found.labels is not None
        assert (found.labels.tolist(), found.num_classes) == (list(expected), max(expected) + 1)
    unknown = Items(lambda number: (IMAGES[number], number % 4), classes=["a", "b", "c", "d"])
    assert map_style(ConcatDataset([tensors, unknown]), num_classes=4).labels is None
    assert map_style(ConcatDataset([unknown, unknown])).num_classes == 4
    whole = Items(lambda number: (IMAGES[number], number % 4), targets=torch.from_numpy(LABELS))
    assert map_style(whole).num_classes == 4
    swapped = Items(lambda number: (IMAGES[number], 3 - number % 4), targets=LABELS, num_classes=4)
    assert map_style(swapped).labels is None  # a transform of labels


@pytest.mark.parametrize(
    ("label", "spec", "num_classes"),
    [
        (lambda number: number % 2 == 0, LabelSpec(), 2),
        (lambda number: np.uint8(number % 2), LabelSpec(), 2),
        (lambda number: torch.tensor([number % 2]), LabelSpec(), 2),
        (lambda number: number / 2, LabelSpec((), "float32"), 1),
        (lambda number: np.float64(number), LabelSpec((), "float64"), 1),
        (lambda number: torch.tensor([1.0, 0.0, number]), LabelSpec((3,), "float32"), 3),
        (lambda number: [0, number, 1, 1], LabelSpec((4,), "int64"), 4),
        (lambda number: np.zeros((8, 6), np.uint8), LabelSpec((8, 6), "uint8"), 2),
    ],
)
def test_labels_of_every_kind(label: Callable[[int], Any], spec: LabelSpec, num_classes: int) -> None:
    is_class = spec.is_class or len(spec.shape) == 2
    given = Items(lambda number: (IMAGES[number], label(number)))
    if is_class:
        assert refusal(given).startswith(
            "the dataset does not say how many classes there are, by num_classes"
        )
    dataset = map_style(given, num_classes=2 if is_class else None)
    assert (dataset.label_spec, dataset.num_classes) == (spec, num_classes)
    source = PreprocessedSamples(dataset, [], 0, 0.2)
    assert source.sample(6, 0, training=False)[1].dtype == spec.dtype


def test_images_of_pillow_are_height_width_channels() -> None:
    for mode, channels in (("RGB", 3), ("L", 1), ("RGBA", 4), ("LA", 2)):
        images = [pillow(mode) for _ in range(6)]
        dataset = map_style(Items([(image, 0) for image in images], num_classes=2))
        assert (dataset.sample_spec, dataset.notes) == (SampleSpec.of((5, 7, channels), "uint8"), ())
        np.testing.assert_array_equal(np.squeeze(dataset.read(2)[0]), np.asarray(images[2]))
    sizes = Items([(pillow("RGB", height=4 + number), 0) for number in range(6)], num_classes=2)
    assert map_style(sizes).sample_spec == SampleSpec.of((None, 7, 3), "uint8", 9 * 7 * 3)
    palettes = Items([(pillow("P"), 0)] * 6, num_classes=2)
    assert "an image of mode P, allowed: L, LA, RGB, " in refusal(palettes)
    gray = Items([(pillow("L" if number == 4 else "RGB"), 0) for number in range(6)], num_classes=2)
    assert "some images are gray, some have colours" in refusal(gray)
    assert "Pillow's images need none" in refusal(Items([(pillow("L"), 0)] * 6, num_classes=2), layout="hw")


def test_encoded_images_are_for_decode() -> None:
    import io

    def encoded(number: int) -> bytes:
        buffer = io.BytesIO()
        Image.fromarray(np.full((5, 7, 3), number, np.uint8)).save(buffer, "PNG")
        return buffer.getvalue()

    dataset = map_style(Items(lambda number: (encoded(number), number % 2), num_classes=2))
    assert dataset.sample_spec is None
    operations = build_operations([("decode", {"mode": "gray"}), ("center_crop", {"height": 4, "width": 4})])
    array, _ = PreprocessedSamples(dataset, operations, 0, 0.2).sample(9, 0, training=False)
    np.testing.assert_array_equal(array, np.full((4, 4, 1), 9))


def test_columns_are_found_by_their_names_or_named() -> None:
    def item(number: int) -> dict[str, Any]:
        return {"age": number, "pulse": 2.5 * number, "wave": [1.0, 2.0, number], "risk": number % 3}

    given = Items(item, num_classes=3)
    assert refusal(given) == (
        "item 0: a dict with age, pulse, wave, risk does not show which is the sample; set sample of "
        "hpcbal.data:map_style to its name"
    )
    assert (
        "item 0: sample lists 'risk', which is the label, so networks would get what they shall"
        in refusal(given, sample=["age", "risk"], label="risk")
    )
    table = map_style(given, sample=["age", "pulse"], label="risk")
    assert table.sample_spec == SampleSpec.of((2,), "float32")
    np.testing.assert_array_equal(table.read(4)[0], [4.0, 10.0])
    series = map_style(given, sample=["wave"], label="risk")
    assert series.sample_spec == SampleSpec.of((3, 1), "float32")
    assert map_style(given, sample="wave", label="risk").sample_spec == SampleSpec.of((3,), "float32")
    assert "its columns have the shapes (), (3,), allowed: one shape" in refusal(
        given, sample=["age", "wave"], label="risk"
    )
    assert "a dict with age, pulse, wave, risk has no 'agee'" in refusal(given, sample="agee", label="risk")
    two = Items(lambda number: {"wave": [1.0, number], "label": number % 2}, num_classes=2)
    assert map_style(two).sample_spec == SampleSpec.of((2,), "float32")
    three = Items(lambda number: {"id": number, "x": [number], "y": number % 2}, num_classes=2)
    assert map_style(three).sample_spec == SampleSpec.of((1,), "int64")
    triple = Items(lambda number: (number, [1.0, number], number % 2), num_classes=2)
    assert "item 0: a tuple of length 3, allowed: two values" in refusal(triple)
    assert map_style(triple, sample=1, label=2).read(3)[0].tolist() == [1.0, 3.0]  # type: ignore[union-attr]


def test_columns_of_hugging_face_have_names_of_classes_and_labels() -> None:
    columns = {"image": [pillow("RGB") for _ in range(30)], "label": [number % 2 for number in range(30)]}
    dataset = map_style(FaceDataset(columns, {"image": object(), "label": ClassLabel(["cat", "dog", "owl"])}))
    assert (dataset.num_classes, dataset.class_names) == (3, ("cat", "dog", "owl"))
    assert dataset.labels is not None
    assert dataset.labels.tolist() == columns["label"]
    assert dataset.sample_spec == SampleSpec.of((5, 7, 3), "uint8")
    other = {"text": ["a"] * 5, "label": [0, 1, 0, 1, 0]}
    assert "got a value of type str, allowed: an array, tensor, image or list of numbers" in refusal(
        FaceDataset(other, {})
    )


class Stream(IterableDataset[Any]):
    def __iter__(self) -> Iterator[Any]:
        return iter([])


class Batches:
    """The shape of a Hugging Face dataset that streams."""

    def __iter__(self) -> Iterator[Any]:
        return iter([])


class PyDataset(Items):
    """Keras' class of this name, also called Sequence; its items are batches."""


class OfKeras(PyDataset):
    """A user's own."""


WAVES = [np.zeros(4, np.float32), np.zeros((4, 2), np.float32)]


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (Stream(), "got Stream, which is of iterable style, but samples are drawn by number; return a"),
        (Batches(), "got Batches, which is of iterable style, "),
        ((each for each in [1]), "got generator, which is of iterable style, "),
        (
            DataLoader(Items([(0, 0)])),
            "got a DataLoader, allowed: the dataset in it, its attribute 'dataset'",
        ),
        (
            OfKeras([(IMAGES[:4], LABELS[:4])] * 10),
            "got OfKeras, a PyDataset of Keras, whose items are batches, allowed: a dataset whose it",
        ),
        (Items, "got the class Items, allowed: an object of it"),
        ({"train": Items([]), "test": Items([])}, "got a dict with train, test, allowed: one dataset"),
        (Items([]), "the dataset has no samples"),
        (([], []), "the dataset has no samples"),
        ((IMAGES, LABELS[:39]), "got 40 samples and 39 labels, allowed: as many labels"),
        ((IMAGES, LABELS, LABELS), "got a tuple of length 3 (ndarray, ndarray, ndarray), allowed: one pair"),
        (((IMAGES, LABELS), (IMAGES, LABELS)), "got a tuple of length 2 (tuple, tuple), allowed: one pair"),
        (
            (Items([(IMAGES[0], 0)]), Items([(IMAGES[1], 1)])),
            "got a tuple of length 2 (Items, Items), allowed: one pair (samples, labels); samples for val",
        ),
        (
            torch.utils.data.random_split(Items([(IMAGES[0], 0)] * 4), [3, 1]),
            "got a list of Subset, allowed: one dataset; samples for validation are another one, in data.val",
        ),
        ((IMAGES, 3), "__len__ must return the number of samples"),
        (torch.utils.data.Dataset(), "__len__ must return the number of samples"),
        (IMAGES, "item 0: an array of shape (3, 8, 6) and type float32, allowed: two values"),
        (
            Items([(IMAGES[0], "cat")] * 3),
            "the first: item 0: got a value of type str, allowed: an array",
        ),
        (Items([(None, 0)] * 3), "got None, allowed: an array, tensor, image or list of numbers"),
        (Items([(IMAGES[0],)] * 3), "item 0: a tuple of length 1, allowed: two values"),
        (
            Items([(IMAGES[0], 0), {"x": IMAGES[0], "y": 0}]),
            "items change their structure: item 0 is a tuple of length 2, item 1 is a dict with x, y; give",
        ),
        (
            Items([(wave, 0) for wave in WAVES]),
            "the sample of item 0 is an array of 1 axes and type float32, that of item 1 an array of 2 axes",
        ),
        (
            Items([(IMAGES[0], [0] * length) for length in (2, 3)]),
            "the label of item 0 is of shape (2,), that of item 1 of shape (3,)",
        ),
        (
            Items(lambda number: ([random.random()], 0)),
            "item 0 differs from read to read, so runs could not be repeated; take random transforms out",
        ),
    ],
)
def test_what_no_run_can_use_is_refused_in_one_sentence(given: Any, message: str) -> None:
    assert message in refusal(given)


def test_the_streams_of_hugging_face_are_known_by_their_name() -> None:
    kind = type("IterableDataset", (), {"__iter__": Batches.__iter__, "__getitem__": list.__getitem__})
    assert refusal(kind()).startswith("got IterableDataset, which is of iterable style, ")


def test_items_that_raise_are_broken_samples_and_all_of_them_a_mistake() -> None:
    def item(number: int, worst: int = 3) -> Any:
        if number < worst:
            raise OSError(5, "no such file")
        return IMAGES[number], number % 4

    dataset = map_style(Items(item, num_classes=4))
    assert dataset.sample_spec == SampleSpec.of((8, 6, 3), "float32")
    with pytest.raises(OSError, match="no such file"):
        dataset.read(2)
    message = refusal(Items(lambda number: item(number, 99), num_classes=4))
    assert re.fullmatch(
        r"none of the 40 items that were tried can be read, the first: item \d+: .*OSError: .*no such file",
        message,
    )


def test_lists_of_unequal_series_are_bounded_by_the_longest() -> None:
    series = [np.zeros((1 + number % 90, 2), np.float32) for number in range(200)]
    dataset = map_style((series, [number % 2 for number in range(200)]))
    assert dataset.sample_spec == SampleSpec.of((None, 2), "float32", 90 * 2 * 4)
    many = map_style(Items(lambda number: (series[number], number % 2), 200, num_classes=2))
    assert many.sample_spec == SampleSpec.of((None, 2), "float32")  # without a bound: only some were read


def test_resumed_runs_know_the_data_again() -> None:
    first = fingerprint((IMAGES, LABELS))
    assert fingerprint(TensorDataset(torch.from_numpy(IMAGES), torch.from_numpy(LABELS))) == first
    brighter = (IMAGES + np.float32(0.1), LABELS)
    for other in (brighter, (IMAGES, LABELS[::-1].copy()), (IMAGES[:39], LABELS[:39])):
        assert fingerprint(other) != first
    assert fingerprint((IMAGES, LABELS), layout="keep") != first
    named = [
        Items(lambda number: (IMAGES[number], 0), num_classes=4, fingerprint=name) for name in ("a", "a", "b")
    ]
    assert [fingerprint(each) == fingerprint(named[0]) for each in named] == [True, True, False]


def test_members_of_our_own_datasets_count_too() -> None:
    weights: NDArray[Any] = np.linspace(1.0, 2.0, 40)
    given = Items(
        lambda number: (IMAGES[number], number % 4),
        num_classes=4,
        validation_ids=[3, 5],
        sizes=weights,
        sample_weights=weights,
    )
    source = PreprocessedSamples(map_style(given), [], 0, 0.3)
    assert source.validation_ids.tolist() == [3, 5]
    np.testing.assert_array_equal(source.sizes, weights)
    np.testing.assert_array_equal(source.sample_weights, weights)  # float64, for training in float64


def test_preprocessing_sees_images_with_the_channels_last() -> None:
    train, held_out = (map_style((IMAGES + added, LABELS)) for added in (np.float32(0.0), np.float32(1.0)))
    both = WithOwnValidation(train, held_out)
    normalize = Normalize(mean=[0.0, 0.5, 1.0], std=1.0, scale=1.0)
    source = PreprocessedSamples(both, [normalize], 0, 0.2)
    array, _ = source.sample(41, 0, training=False)
    np.testing.assert_allclose(array, np.moveaxis(IMAGES[1], 0, 2) + np.array([1.0, 0.5, 0.0]), rtol=1e-6)
    assert array.flags.c_contiguous


OWN = """
import numpy as np

def pair(length=20):
    return np.zeros((length, 5), np.float32), np.arange(length) % 2

def triple():
    return 1, 2, 3

class Rows:
    num_classes = 2

    def __init__(self, length):
        self.length = length

    def __len__(self):
        return self.length

    def __getitem__(self, number):
        if self.length == 13:
            raise SystemExit("no rows today")
        return {"id": number, "row": np.full(5, number, np.float32), "kind": number % 2}
"""


@pytest.fixture
def own_module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    name = "own_rows_of_a_test"
    (tmp_path / f"{name}.py").write_text(OWN)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, name, raising=False)
    return name


def test_a_config_names_such_a_dataset_or_says_more_about_it(own_module: str) -> None:
    assert len(open_dataset(f"{own_module}:pair", {"length": 30})) == 30
    args = {"dataset": f"{own_module}:Rows", "args": {"length": 9}, "sample": "row", "label": "kind"}
    dataset = open_dataset("hpcbal.data:map_style", args)
    assert dataset.read(4)[0].tolist() == [4.0] * 5  # type: ignore[union-attr]
    assert dataset.describe(4) == "Rows[4]"
    with pytest.raises(DataError, match=rf"^data.dataset {own_module}:triple: got a tuple of length 3 \("):
        open_dataset(f"{own_module}:triple", {})
    with pytest.raises(
        DataError, match=rf"^data.validation {own_module}:Rows: item 0: a dict with id, row, kind"
    ):
        open_dataset(f"{own_module}:Rows", {"length": 9}, "data.validation")
    with pytest.raises(DataError, match=r"map_style: num_classes is 'two', allowed: a whole number"):
        open_dataset("hpcbal.data:map_style", {**args, "num_classes": "two"})
    with pytest.raises(UserCodeError, match=r"cannot be opened: .*SystemExit: no rows today"):
        open_dataset("hpcbal.data:map_style", {**args, "args": {"length": 13}})


def test_the_example_of_pytorch_gives_its_network_what_it_takes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(EXAMPLES))
    import bars

    source = open_source(load_config(EXAMPLES / "bars.yaml"))
    assert (source.num_train + source.num_validation, source.num_classes) == (480, 2)
    image, label = source.sample(3, 0, training=True)
    original, own_label = bars.Bars()[3]
    batch = torch.from_numpy(image[np.newaxis]).permute(0, 3, 1, 2)  # as a trainer makes it
    assert (torch.equal(batch[0], original), int(label)) == (True, own_label)
    assert bars.cnn((1, 8, 8), 2)(batch).shape == (1, 2)


def test_arrays_need_no_library(own_module: str, tmp_path: Path) -> None:
    program = (
        "import sys\n"
        "from hpcbal.data.held_out import open_dataset\n"
        f"open_dataset('{own_module}:pair', {{}}).read(3)\n"
        "print(*sorted({'torch', 'datasets', 'tensorflow', 'mpi4py'} & set(sys.modules)))"
    )
    done = subprocess.run(
        [sys.executable, "-c", f"import sys; sys.path.append({str(tmp_path)!r})\n{program}"],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert done.stdout.strip() == ""


def test_a_number_of_classes_that_was_counted_follows_the_training_data() -> None:
    def items(most: int, **more: Any) -> Any:
        chosen = np.flatnonzero(most >= LABELS)
        return map_style((IMAGES[chosen], LABELS[chosen]), **more)

    trained = items(2)
    rare = of_same_kind(items(1), trained, "data.test.dataset my:rare")
    assert (rare.num_classes, len(rare)) == (3, 20)
    both: Any = WithOwnValidation(trained, of_same_kind(items(0), trained, "validation"))
    assert of_same_kind(items(1), both, "test").num_classes == 3
    with pytest.raises(DataError) as caught:
        of_same_kind(items(3), both, "data.test.dataset my:all")
    assert str(caught.value) == (
        "data.test.dataset my:all: its largest label is 3, but data.dataset has the classes 0 to 2, as its "
        "largest label shows; set num_classes of hpcbal.data:map_style there if it lacks some"
    )
    with pytest.raises(DataError, match=r"largest label is 3, but data.dataset has the classes 0 to 2$"):
        of_same_kind(items(3), items(2, num_classes=3), "test")
    with pytest.raises(
        DataError,
        match=r"num_classes is 2, but 3 in data.dataset; both need samples and labels of the same kind \(num_"
        r"classes of hpcbal.data:map_style sets it\)$",
    ):
        of_same_kind(items(1, num_classes=2), trained, "test")
    values = map_style((IMAGES, RANDOM.random((40, 2), np.float32)))
    with pytest.raises(DataError, match=r"label_spec is .*both need samples and labels of the same kind$"):
        of_same_kind(items(1), values, "test")


def test_labels_that_cannot_be_counted_show_the_mistake() -> None:
    assert refusal((LABELS, IMAGES)) == (
        "the sample is one number, and the label an array (3, 8, 6) of float32, allowed: the sample first, "
        "then the label; have they changed places?"
    )
    labels = [None if number in (3, 17) else number % 2 for number in range(40)]
    columns = {"x": [[1.0, 2.0]] * 40, "label": labels}
    for given in (FaceDataset(columns, {}), (IMAGES, labels)):
        assert refusal(given) == (
            "2 of 40 labels are missing (None or NaN), the first that of item 3; leave these items out, or "
            "set num_classes of hpcbal.data:map_style, and they count as broken"
        )
        assert map_style(given, num_classes=2).num_classes == 2
