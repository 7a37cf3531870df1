"""From a config's import path and arguments to a dataset, with one clear sentence on failure."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import numpy as np
import pytest

from hpcbal import env
from hpcbal.config import load_config
from hpcbal.data import LabelSpec, PreprocessedSamples, SampleSpec, open_source
from hpcbal.data.held_out import open_dataset
from hpcbal.errors import DataError, InputError, UserCodeError

OWN = """
import numpy as np
from hpcbal.data import LabelSpec, SampleSpec

class Series:
    num_classes = 2
    sample_spec = SampleSpec.of((5,), "float32")
    label_spec = LabelSpec()

    def __init__(self, length, scale=1.0):
        self.length, self.scale = length, 1 / scale

    def __len__(self):
        return self.length

    def read(self, sample_id):
        return np.full(5, sample_id * self.scale, np.float32), sample_id % 2

    def describe(self, sample_id):
        return f"series {sample_id}"

class Half:
    num_classes = 2
    def __len__(self):
        return 3

class Given(Series):
    def __init__(self, member, value):
        super().__init__(3)
        setattr(self, member, value)

class Boxes(Series):
    label_spec = LabelSpec((2,), "float32")

class Method(Series):
    def num_classes(self):
        return 2

class Raising(Series):
    @property
    def sample_spec(self):
        raise KeyError("not yet")

def nothing():
    return None

def leaves():
    raise SystemExit("no data today")
"""


@pytest.fixture
def own_module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    name = "own_dataset_of_a_test"
    (tmp_path / f"{name}.py").write_text(OWN)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, name, raising=False)
    return name


def test_a_users_own_class_works(own_module: str) -> None:
    dataset = open_dataset(f"{own_module}:Series", {"length": 4, "scale": 2})
    assert len(dataset) == 4
    assert dataset.read(3)[0].tolist() == [1.5] * 5  # type: ignore[union-attr]


def test_what_a_constructor_raises_ends_the_run_clearly(own_module: str) -> None:
    message = r"Series: cannot be opened: .*own_dataset_of_a_test.py:11: ZeroDivisionError: division by zero$"
    with pytest.raises(UserCodeError, match=message):
        open_dataset(f"{own_module}:Series", {"length": 4, "scale": 0})
    with pytest.raises(UserCodeError, match=r"leaves: cannot be opened: .*: SystemExit: no data today"):
        open_dataset(f"{own_module}:leaves", {})


def test_our_own_datasets_explain_themselves(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"^image_folder: .* is not a directory"):
        open_dataset("hpcbal.data:image_folder", {"path": str(tmp_path / "none")})


@pytest.mark.parametrize(
    ("args", "message"),
    [
        ({}, "needs the argument length"),
        ({"length": 3, "sale": 1}, "has no argument 'sale' (did you mean 'scale'?), allowed: length, scale"),
    ],
)
def test_wrong_arguments_are_reported_as_by_validate(
    own_module: str, args: dict[str, int], message: str
) -> None:
    with pytest.raises(DataError) as caught:
        open_dataset(f"{own_module}:Series", args)
    assert str(caught.value) == f"data.args: {own_module}:Series {message}"


def test_the_error_for_an_object_that_is_not_a_dataset_lists_what_it_lacks(own_module: str) -> None:
    with pytest.raises(
        DataError, match=r"got a Half without sample_spec, label_spec, read, describe; a dataset"
    ):
        open_dataset(f"{own_module}:Half", {})
    with pytest.raises(DataError, match=r"got a NoneType without __len__, num_classes"):
        open_dataset(f"{own_module}:nothing", {})


def test_an_empty_dataset_is_refused(own_module: str) -> None:
    with pytest.raises(DataError, match=r"the dataset has no samples"):
        open_dataset(f"{own_module}:Series", {"length": 0})


@pytest.mark.parametrize(
    ("length", "message"),
    [
        (-3, r"__len__ must return the number of samples, .*ValueError: __len__\(\) should return >= 0"),
        (10**30, r"__len__ must return the number of samples, .*OverflowError: "),
        (10**18, r"__len__ returns 1000000000000000000, allowed: at most 1000000000 samples"),
        (None, r"__len__ must return the number of samples, .*TypeError: 'NoneType'"),
    ],
)
def test_a_length_that_no_run_can_use_is_refused(own_module: str, length: object, message: str) -> None:
    with pytest.raises(DataError, match=message):
        open_dataset(f"{own_module}:Series", {"length": length})


CLASSES = "allowed: a whole number from 1 to 10000000"
SAMPLES = "allowed: SampleSpec.of(shape, dtype), or None for encoded images"
LABELS = "allowed: LabelSpec(), or LabelSpec(shape, dtype) with a numeric type"


@pytest.mark.parametrize(
    ("member", "value", "message"),
    [
        ("num_classes", "3", f"num_classes is '3', {CLASSES}"),
        ("num_classes", 0, f"num_classes is 0, {CLASSES}"),
        ("num_classes", -1, f"num_classes is -1, {CLASSES}"),
        ("num_classes", 10**9, f"num_classes is 1000000000, {CLASSES}"),
        ("num_classes", 3.0, f"num_classes is 3.0, {CLASSES}"),
        ("num_classes", True, f"num_classes is True, {CLASSES}"),
        ("sample_spec", (28, 28, 1), f"sample_spec is (28, 28, 1), {SAMPLES}"),
        (
            "sample_spec",
            SampleSpec((5,), "f4", 20),
            f"dtype='f4', max_bytes=20), {SAMPLES}",
        ),
        ("sample_spec", SampleSpec(5, "text", 20), SAMPLES),  # type: ignore[arg-type]
        ("label_spec", "int64", f"label_spec is 'int64', {LABELS}"),
        ("label_spec", LabelSpec, f"label_spec is the class LabelSpec, {LABELS}"),
        ("label_spec", LabelSpec(dtype="U8"), f"label_spec is LabelSpec(shape=(), dtype='U8'), {LABELS}"),
        ("label_spec", LabelSpec(3), LABELS),  # type: ignore[arg-type]
    ],
)
def test_a_member_with_a_value_that_no_run_can_use_is_refused(
    own_module: str, member: str, value: object, message: str
) -> None:
    with pytest.raises(DataError, match=f"^data.dataset .*:Given: .*{re.escape(message)}$"):
        open_dataset(f"{own_module}:Given", {"member": member, "value": value})


def test_members_that_are_methods_or_raise_are_explained(own_module: str) -> None:
    with pytest.raises(
        DataError, match=re.escape(f"num_classes is a method (does it lack @property?), {CLASSES}")
    ):
        open_dataset(f"{own_module}:Method", {"length": 3})
    with pytest.raises(UserCodeError, match=r"Raising: cannot be opened: .*py:\d+: KeyError: 'not yet'$"):
        open_dataset(f"{own_module}:Raising", {"length": 3})


def test_a_number_of_classes_may_be_numpys(own_module: str) -> None:
    dataset = open_dataset(f"{own_module}:Given", {"member": "num_classes", "value": np.int64(3)})
    source = PreprocessedSamples(dataset, [], seed=0, validation_fraction=0.4)
    assert source.num_classes == 3
    assert len(source.fingerprint) == 64


def test_an_import_path_that_leads_nowhere_is_an_input_error() -> None:
    with pytest.raises(InputError, match=r"digitz"):
        open_dataset("hpcbal.data:digitz", {})


def test_a_config_becomes_a_source(image_tree: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("IMAGES", str(image_tree.parent))
    monkeypatch.setenv("TREE", image_tree.name)
    file = tmp_path / "run.yaml"
    file.write_text(
        """
schema: 1
seed: 5
data:
  dataset: hpcbal.data:image_folder
  args: {path: "$IMAGES/${TREE}"}
  validation_fraction: 0.4
preprocessing:
  - decode: {mode: gray}
  - normalize: {mean: 0.5, std: 0.25}
dataplane: {max_sample_bytes: 10000}
dnns:
  - name: a
    model: hpcbal.models:resnet
    optimizer: {name: sgd, learning_rate: 0.1}
    batch_size: 2
    stop: {max_epochs: 1}
"""
    )
    source = open_source(load_config(file))
    assert (source.num_train, source.num_validation) == (3, 2)
    assert source.sample_spec == SampleSpec.of((None, None, 1), "uint8", 2_500)  # normalized on the device
    assert source.sample(0, 0, training=True)[0].shape[1:] == (30, 1)
    monkeypatch.delenv("TREE")
    with pytest.raises(InputError, match=r"data\.args\.path: got '\$IMAGES/.*, but .* TREE is not set"):
        open_source(load_config(file))


def test_variables_are_replaced_everywhere_in_arguments(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HERE", "/here")
    args = {"paths": ["$HERE/a", {"b": "${HERE}b"}], "pattern": "^.*$", "price": "5$$", "number": 3}
    expected = {"paths": ["/here/a", {"b": "/hereb"}], "pattern": "^.*$", "price": "5$", "number": 3}
    assert env.expanded(args, "data.args") == expected
