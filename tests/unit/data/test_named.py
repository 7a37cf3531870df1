"""Samples of several named arrays and labels: contracts, operations, records and what is refused."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from PIL import Image

from hpcbal.config import load_config
from hpcbal.data import BadSample, LabelSpec, PreprocessedSamples, SampleSpec, open_source
from hpcbal.data.held_out import open_dataset
from hpcbal.data.operations.decode import Decode
from hpcbal.data.operations.geometry import RandomFlip, Resize
from hpcbal.data.operations.mixing import Mixup
from hpcbal.data.operations.pixel_values import Normalize
from hpcbal.dataplane.cache import SampleCache
from hpcbal.dataplane.cache_size import CacheNeed
from hpcbal.dataplane.shared_memory import SharedMemory
from hpcbal.errors import ConfigError, DataError


class Both:
    """An encoded image and a table; a class and a price."""

    def __init__(self, wrong: Any = None) -> None:
        self.num_classes = {"kind": 3, "price": 1}
        self.sample_spec = {"image": None, "table": SampleSpec.of((4,), "float32")}
        self.label_spec = {"kind": LabelSpec(), "price": LabelSpec((), "float32")}
        self.wrong = wrong

    def __len__(self) -> int:
        return 20

    def read(self, sample_id: int) -> Any:
        rng = np.random.default_rng(sample_id)
        pixels = rng.integers(0, 256, (9 + sample_id % 3, 10, 3), np.uint8)
        file = io.BytesIO()
        Image.fromarray(pixels).save(file, "PNG")
        sample = {"image": file.getvalue(), "table": rng.random(4, np.float32)}
        label = {"kind": sample_id % 3, "price": sample_id / 8}
        if sample_id == 7 and self.wrong is not None:
            return self.wrong(sample, label)
        return sample, label

    def describe(self, sample_id: int) -> str:
        return f"row {sample_id}"


def of_both(operations: list[Any], of: list[Any] | None = None, wrong: Any = None, **more: Any) -> Any:
    from hpcbal.data.named import WithNamedLabels

    names = [[] for _ in operations] if of is None else of
    return PreprocessedSamples(
        WithNamedLabels(Both(wrong)), operations, seed=1, validation_fraction=0.2, of=names, **more
    )


IMAGE = [Decode(), Resize(5, 6), RandomFlip()]


def test_an_operation_without_a_name_is_for_the_only_array_that_it_can_work_on() -> None:
    source = of_both([*IMAGE, Normalize(scale=2.0)], [[], [], [], ["table"]])
    shapes = {name: (spec.shape, spec.dtype) for name, spec in source.sample_spec.by_name.items()}
    assert shapes == {"image": ((5, 6, 3), "uint8"), "table": ((4,), "float32")}
    sample, label = source.sample(3, 0, training=False)
    arrays, labels = source.sample_spec.unpacked(sample), source.label_spec.unpacked(label)
    assert arrays["image"].shape == (5, 6, 3)
    np.testing.assert_allclose(arrays["table"], 2.0 * Both().read(3)[0]["table"], rtol=1e-6)
    assert (int(labels["kind"]), float(labels["price"])) == (0, 0.375)
    flipped = [
        source.sample_spec.unpacked(source.sample(3, number, training=True)[0])["image"].tobytes()
        for number in range(8)
    ]
    assert len(set(flipped)) == 2


def test_elementwise_operations_at_the_end_of_an_array_are_left_for_the_device() -> None:
    source = of_both([*IMAGE, Normalize(mean=0.5)], [[], [], [], ["image"]], on_device=True)
    assert [(operation.of, operation.dtype) for operation in source.on_device] == [("image", "float32")]
    assert dict(source.sample_spec.parts)["image"].dtype == "uint8"


@pytest.mark.parametrize(
    ("operations", "of", "message"),
    [
        ([*IMAGE, Normalize()], None, r"preprocessing\.3: it is not clear .* image, table.* 'of: image'"),
        ([*IMAGE, Normalize()], [[], [], [], ["tables"]], r"preprocessing\.3\.of: got 'tables' .*'table'"),
        ([*IMAGE, Resize(2, 2)], [[], [], [], ["table"]], r"preprocessing\.3\.resize: needs images"),
        ([*IMAGE, Mixup()], None, r"mixup: samples of several named arrays \(image, table\) cannot be mixed"),
        ([], None, "image: preprocessing: the dataset gives encoded images"),
        ([Decode()], None, r"image: preprocessing: samples \(any, any, 3\) uint8 differ in size"),
    ],
)
def test_operations_that_do_not_fit_are_refused(operations: Any, of: Any, message: str) -> None:
    with pytest.raises((ConfigError, DataError), match=message):
        of_both(operations, of)


def test_a_name_for_samples_of_one_array_is_refused(array_dataset: Any) -> None:
    dataset = array_dataset(np.zeros((9, 4, 4, 1), np.uint8))
    with pytest.raises(ConfigError, match=r"preprocessing\.0\.of: got image, .* leave it out"):
        PreprocessedSamples(dataset, [RandomFlip()], 0, 0.2, of=[["image"]])


@pytest.mark.parametrize(
    ("wrong", "reason"),
    [
        (lambda x, y: ({"image": x["image"]}, y), "read returned the arrays image, promised: image, table"),
        (
            lambda x, y: ({**x, "tables": 0}, y),
            r"the arrays image, table, tables, promised: image, table \(did you mean 'table'\?\)",
        ),
        (lambda x, y: (x["table"], y), "an array of shape .*, promised: a dict of the arrays image, table"),
        (lambda x, y: ({**x, "table": x["table"][:3]}, y), r"table: read returned .*\(3,\).*\(4\) float32"),
        (lambda x, y: ({**x, "table": x["table"] * np.nan}, y), "table: 4 NaN of 4 values"),
        (lambda x, y: ({**x, "image": b"none"}, y), "image"),
        (lambda x, y: (x, {"kind": 1}), "read returned the labels kind, promised: kind, price"),
        (lambda x, y: (x, {**y, "kind": 3}), r"kind: label 3, allowed: whole numbers, 0..2"),
        (lambda x, y: (x, {**y, "price": float("inf")}), "price: label: 1 infinite of 1 values"),
        (lambda x, y: (x, 1), "promised: a dict of the labels kind, price"),
    ],
)
def test_a_sample_that_is_not_as_promised_is_broken(wrong: Any, reason: str) -> None:
    source = of_both(IMAGE, wrong=wrong)
    source.sample(6, 0, training=True)
    with pytest.raises(BadSample, match=reason):
        source.sample(7, 0, training=True)


FIXED = IMAGE[:2]


@pytest.mark.parametrize("operations", [IMAGE, FIXED])
def test_what_does_not_change_from_pass_to_pass_is_kept_as_one_record(operations: list[Any]) -> None:
    plain, cached = of_both(operations), of_both(operations)
    need = CacheNeed.of(cached)
    assert need is not None
    assert [name for name, _ in need.sample.parts] == ["image", "table"]
    num_bytes = need.whole_bytes(1)
    cached.cache = SampleCache(SharedMemory.private(num_bytes), need, num_bytes)
    for _ in range(2):
        for sample_id in range(20):
            for training in (True, False):
                one, other = (each.sample(sample_id, 1, training) for each in (plain, cached))
                assert [part.tobytes() for part in one] == [part.tobytes() for part in other]
    assert sum(map(cached.cache.has, range(len(cached.dataset)))) == 20
    spec, label = cached.sample_spec, cached.label_spec
    ids, samples, labels = np.arange(20), np.empty(20, spec.dtype), np.empty(20, label.dtype)
    assert cached.copy_kept(ids, samples, labels) is (operations is FIXED)
    for sample_id in range(20 if operations is FIXED else 0):
        one, other = plain.sample(sample_id, 1, training=True)
        assert (samples[sample_id].tobytes(), labels[sample_id].tobytes()) == (one.tobytes(), other.tobytes())
    cached.cache.close()


def test_arrays_of_unequal_shape_are_refused_although_they_are_bounded() -> None:
    with pytest.raises(DataError, match=r"the array image has samples .* differ in size; .*'of: image'"):
        of_both([Decode()], max_sample_bytes=2**20)


def test_other_names_are_other_data() -> None:
    known = of_both([*IMAGE, Normalize()], [[], [], [], ["table"]]).fingerprint
    assert known == of_both([*IMAGE, Normalize()], [[], [], [], ["table"]]).fingerprint
    assert known != of_both([*IMAGE, Normalize()], [[], [], [], ["image"]]).fingerprint


MODULE = """
import numpy as np
from hpcbal.data import LabelSpec, SampleSpec

def pair(length=12):
    x = {"a": np.arange(2.0 * length).reshape(length, 2), "b": np.ones((length, 3), "uint8")}
    return x, {"kind": np.arange(length) % 4, "size": np.ones((length, 2), "float32")}

def masked(length=12):
    x, labels = pair(length)
    return {"a": np.ma.masked_equal(x["a"], 7), "b": x["b"]}, np.ma.masked_equal(labels["kind"], 3)

def one_label(length=12):
    return {"a": np.ones((length, 2))}, np.arange(length) % 2

def uneven():
    return {"a": np.ones((3, 2))}, np.arange(4)

class Items:
    num_classes = {"kind": 2}
    shapes = [(3, 8, 8)]
    def __len__(self): return 10
    def __getitem__(self, i):
        image = np.full(self.shapes[i % len(self.shapes)], i, np.float32)
        return {"image": image, "table": [0.5, i]}, {"kind": i % 2, "price": i / 2}

class Uncounted(Items):
    num_classes = None

class Known(Items):
    validation_ids = [7, 2]
    sample_weights = np.arange(10.0)
    targets = [i % 2 for i in range(10)]
    classes = ["no", "yes"]
    num_classes = None
    def __getitem__(self, i):
        return super().__getitem__(i)[0], i % 2

class Random(Items):
    def __getitem__(self, i):
        sample, label = super().__getitem__(i)
        return {**sample, "table": np.random.random(2)}, label

class Growing(Items):
    shapes = [(3, 8, 8), (3, 8, 9)]

class Wrong:
    sample_spec = {"mask": SampleSpec.of((2,), "uint8")}
    label_spec = {"kind": LabelSpec()}
    num_classes = 3
    def __len__(self): return 3
    def read(self, i): return None
    def describe(self, i): return ""
"""


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    name = f"named_{tmp_path.name.replace('-', '_')}"
    (tmp_path / f"{name}.py").write_text(MODULE)
    monkeypatch.syspath_prepend(str(tmp_path))
    return name


def test_arrays_by_name_as_fit_of_keras_takes_them_are_a_dataset(module: str) -> None:
    dataset: Any = open_dataset(f"{module}:pair", {})
    assert (len(dataset), dataset.num_classes) == (12, 6)
    assert dataset.sample_spec["b"] == SampleSpec.of((3,), "uint8")
    labels = dataset.label_spec.by_name
    assert (labels["kind"].is_class, labels["kind"].num_classes, labels["size"].shape) == (True, 4, (2,))
    source = PreprocessedSamples(dataset, (), 0, 0.25)
    sample, label = source.sample(5, 0, training=True)
    assert source.sample_spec.unpacked(sample)["a"].tolist() == [10.0, 11.0]
    assert int(source.label_spec.unpacked(label)["kind"]) == 1
    one = open_dataset(f"{module}:one_label", {})
    assert one.label_spec == LabelSpec()
    assert one.num_classes == 2
    with pytest.raises(DataError, match=r"different numbers of samples \(a: 3, unnamed: 4\)"):
        open_dataset(f"{module}:uneven", {})


def test_masked_values_of_named_arrays_are_missing(module: str) -> None:
    dataset: Any = open_dataset(f"{module}:masked", {})
    assert dataset.num_classes == 3
    source = PreprocessedSamples(dataset, (), 0, 0.25)
    source.sample(5, 0, training=True)
    for sample_id, masked in ((3, "1 of 2"), (7, "1 of 1")):
        with pytest.raises(BadSample, match=rf"row {sample_id}\): {masked} values are masked"):
            source.sample(sample_id, 0, training=True)


def test_items_of_named_arrays_as_datasets_of_pytorch_have_them_are_a_dataset(module: str) -> None:
    dataset: Any = open_dataset(f"{module}:Items", {})
    assert dataset.sample_spec == {
        "image": SampleSpec.of((8, 8, 3), "float32"),  # from channels first
        "table": SampleSpec.of((2,), "float32"),
    }
    labels = {name: (spec.is_class, spec.num_classes) for name, spec in dataset.label_spec.parts}
    assert labels == {"kind": (True, 2), "price": (False, 1)}
    sample, label = PreprocessedSamples(dataset, (), 0, 0.2).sample(3, 0, training=True)
    assert float(label["f1"]) == 1.5
    assert sample["f0"].shape == (8, 8, 3)
    with pytest.raises(DataError, match="how many classes the label kind has, allowed: an attribute"):
        open_dataset(f"{module}:Uncounted", {})
    with pytest.raises(DataError, match=r"image: got arrays of the shapes \(3, 8, 8\) and \(3, 8, 9\)"):
        open_dataset(f"{module}:Growing", {})


def test_what_such_items_and_arrays_say_beside_samples_counts(module: str) -> None:
    """Its split, weights and labels; without a fingerprint of their own it is made of what is in them."""
    known: Any = open_dataset(f"{module}:Known", {})
    source = PreprocessedSamples(known, (), 0, 0.2)
    assert sorted(source.validation_ids.tolist()) == [2, 7]
    assert (known.num_classes, known.class_names) == (2, ("no", "yes"))
    assert known.labels.tolist() == [0, 1] * 5
    assert known.sample_weights.tolist() == list(range(10))
    assert open_dataset(f"{module}:one_label", {}).labels.tolist() == [0, 1] * 6
    found = {
        name: {open_dataset(f"{module}:{name}", {}).fingerprint for _ in range(2)}
        for name in ("Items", "Known", "pair", "one_label")
    }
    assert [len(each) for each in found.values()] == [1] * 4
    assert len(set.union(*found.values())) == 4
    shorter = open_dataset(f"{module}:pair", {"length": 11})
    assert shorter.fingerprint not in found["pair"]
    with pytest.raises(DataError, match="item 0 differs from read to read, so runs could not be repeated"):
        open_dataset(f"{module}:Random", {})


def test_wrong_names_and_numbers_of_classes_are_refused(module: str) -> None:
    with pytest.raises(DataError, match=r"sample_spec has the name 'mask'.*; num_classes is 3"):
        open_dataset(f"{module}:Wrong", {})


def test_partitioned_data_are_refused_in_one_sentence(module: str, tmp_path: Path) -> None:
    config = {
        "schema": 1,
        "name": "x",
        "data": {"dataset": f"{module}:pair", "access": "partitioned"},
        "balance": {"policy": "even"},
        "defaults": {"batch_size": 4, "optimizer": {"name": "sgd", "learning_rate": 0.1}},
        "dnns": [{"name": "a", "model": "hpcbal.models:softmax", "stop": {"max_epochs": 1}}],
    }
    path = tmp_path / "x.yaml"
    path.write_text(yaml.safe_dump({**config, "preprocessing": [{"random_flip": None, "of": "a"}]}))
    with pytest.raises(ConfigError, match=r"data.access: got 'partitioned' for samples of several named"):
        load_config(path)
    path.write_text(yaml.safe_dump(config))
    with pytest.raises(DataError, match=r"data.access: got partitioned, .* allowed for these: shared"):
        open_source(load_config(path))  # type: ignore[arg-type]
