"""Samples that no DNN sees: a fraction for the test, and validation and test datasets of their own."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hpcbal.config import load_config
from hpcbal.data import LabelSpec, PreprocessedSamples, SampleSpec, open_source
from hpcbal.data.evaluation import open_sample_set
from hpcbal.data.held_out import WithOwnValidation, of_same_kind
from hpcbal.data.split import ids_for_test, split_ids
from hpcbal.errors import ConfigError, DataError

RUN = """
schema: 1
seed: 3
data: {data}
dnns:
  - name: a
    model: hpcbal.models:softmax
    optimizer: {{name: sgd, learning_rate: 0.1}}
    batch_size: 8
    stop: {{max_epochs: 1}}
"""

OWN = """
import numpy as np
from hpcbal.data import LabelSpec, SampleSpec

class Rows:
    sample_spec = SampleSpec.of((4,), "float32")
    label_spec = LabelSpec()

    def __init__(self, first, length, num_classes=3, own=False):
        self.first, self.length, self.num_classes = first, length, num_classes
        self.fingerprint = f"rows from {first}"
        if own:
            self.validation_ids = [0]

    def __len__(self):
        return self.length

    def read(self, sample_id):
        value = self.first + sample_id
        return np.full(4, value, np.float32), value % self.num_classes

    def describe(self, sample_id):
        return f"row {self.first + sample_id}"
"""


@pytest.fixture
def config_of(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    (tmp_path / "held_out_rows.py").write_text(OWN)
    monkeypatch.syspath_prepend(tmp_path)

    def make(data: str) -> Any:
        file = tmp_path / "run.yaml"
        file.write_text(RUN.format(data=data))
        return load_config(file, check_imports=True)

    return make


ROWS = "dataset: held_out_rows:Rows, args: {first: 0, length: 20}"


@given(st.integers(0, 2**32 - 1), st.integers(10, 60), st.floats(0.1, 0.4), st.floats(0.0, 0.4))
def test_the_three_parts_are_disjoint_and_complete(
    seed: int, length: int, test: float, validation: float
) -> None:
    numbers: Any = range(length)
    for_test = ids_for_test(numbers, seed, test)
    if round(length * validation) < 1:
        validation = 0.0
    train, validating = split_ids(numbers, seed, validation, for_test)
    assert sorted([*train, *validating, *for_test]) == list(range(length))
    assert (len(for_test), len(validating)) == (round(length * test), round(length * validation))


def test_without_a_test_fraction_the_split_is_as_it_always_was(array_dataset: Any) -> None:
    """Golden values from before there was one: runs that have begun must resume with the same split."""
    dataset = array_dataset(np.zeros((10, 2), np.uint8))
    assert split_ids(dataset, 0, 0.3)[1].tolist() == [1, 2, 6]
    source = PreprocessedSamples(dataset, (), seed=0, validation_fraction=0.3)
    assert source.fingerprint == "dc0d52e22e71342901186c00aebeea29b8fc1793ad4668209560e27e945dfa3d"
    assert source.test_ids.tolist() == []


def test_test_samples_are_in_no_pass_and_depend_on_the_seed(array_dataset: Any) -> None:
    dataset = array_dataset(np.zeros((40, 2), np.uint8))
    source = PreprocessedSamples(dataset, (), seed=0, validation_fraction=0.25, test_fraction=0.25)
    assert (source.num_train, source.num_validation, len(source.test_ids)) == (20, 10, 10)
    for pass_index in range(3):
        assert not set(source.ids_of_pass(pass_index)) & set(source.test_ids)
    other = PreprocessedSamples(dataset, (), seed=1, validation_fraction=0.25, test_fraction=0.25)
    assert other.test_ids.tolist() != source.test_ids.tolist()
    assert other.fingerprint != source.fingerprint


def test_a_dataset_keeps_its_own_validation_samples_beside_a_test_fraction(array_dataset: Any) -> None:
    dataset = array_dataset(np.zeros((10, 2), np.uint8))
    dataset.validation_ids = [7, 8, 9]
    source = PreprocessedSamples(dataset, (), seed=0, validation_fraction=0.2, test_fraction=0.3)
    assert source.validation_ids.tolist() == [7, 8, 9]
    assert len(source.test_ids) == 2
    assert source.test_ids.max() < 7


@pytest.mark.parametrize(("fraction", "text"), [(0.04, "none for the test"), (0.96, "none for training")])
def test_a_test_fraction_that_leaves_a_part_empty_is_refused(fraction: float, text: str) -> None:
    numbers: Any = range(10)
    with pytest.raises(DataError, match=rf"data.test_fraction: got {fraction}, but that leaves {text}"):
        ids_for_test(numbers, 0, fraction)


def test_fractions_that_leave_nothing_for_training_are_refused_by_the_split() -> None:
    numbers: Any = range(4)
    with pytest.raises(DataError, match="none of 4 samples for training beside 2 for the test"):
        split_ids(numbers, 0, 0.4, ids_for_test(numbers, 0, 0.5))


def test_an_own_validation_dataset_follows_the_training_samples(config_of: Any) -> None:
    config = config_of(f"{{{ROWS}, validation: {{args: {{first: 100, length: 5}}}}}}")
    source = open_source(config)
    assert (source.num_train, source.num_validation) == (20, 5)
    assert source.ids_of_pass(0)[20:].tolist() == [20, 21, 22, 23, 24]
    assert source.sample(21, 0, training=False)[0][0] == 101
    assert source.where(21) == "validation: row 101"
    assert source.where(1) == "row 1"
    plain = open_source(config_of(f"{{{ROWS}}}"))
    other = open_source(config_of(f"{{{ROWS}, validation: {{args: {{first: 200, length: 5}}}}}}"))
    assert len({source.fingerprint, plain.fingerprint, other.fingerprint}) == 3


def test_a_test_dataset_changes_nothing_for_the_run_and_is_read_as_a_whole(config_of: Any) -> None:
    config = config_of(f"{{{ROWS}, test: {{args: {{first: 100, length: 5}}}}}}")
    assert open_source(config).fingerprint == open_source(config_of(f"{{{ROWS}}}")).fingerprint
    samples = open_sample_set(config, open_source(config), "test")
    assert samples.ids.tolist() == [0, 1, 2, 3, 4]
    assert samples.source.sample(4, 0, training=False)[0][0] == 104
    assert samples.name == "data.test"


def test_sets_that_can_be_evaluated(config_of: Any) -> None:
    config = config_of(f"{{{ROWS}, test_fraction: 0.25, validation_fraction: 0.2}}")
    test, validation = (open_sample_set(config, open_source(config), name) for name in ("test", "validation"))
    assert (len(test.ids), len(validation.ids)) == (5, 4)
    assert not set(test.ids) & set(validation.ids)
    assert (test.name, validation.name) == ("data.test_fraction", "the validation set")
    own = open_sample_set(config, open_source(config), "held_out_rows:Rows", {"first": 50, "length": 2})
    assert (own.name, len(own.ids)) == ("held_out_rows:Rows", 2)
    without = config_of(f"{{{ROWS}, validation_fraction: 0}}")
    for name in ("test", "validation"):
        with pytest.raises(DataError, match=f"no {name} samples"):
            open_sample_set(without, open_source(without), name)


@pytest.mark.parametrize(
    ("data", "problem"),
    [
        ("test: {args: {length: 4, first: 1}}, test_fraction: 0.1", "beside data.test; keep one"),
        ("validation: {args: {first: 9, length: 4}}, validation_fraction: 0.3", "beside data.validation"),
        ("test: {}", "needs the argument first, length"),
        ("test: {args: {first: 0, length: 20}}", "got the dataset and args of data.dataset"),
        ("validation: {args: {first: 0, length: 20}}", "set data.validation_fraction"),
        ("test_fraction: 0.5, validation_fraction: 0.5", "together less than 1"),
        ("test_fraction: 1", "0 <= test_fraction < 1"),
        ("test: {args: {start: 1, length: 2}}", "data.test.args.start: held_out_rows:Rows has no argument"),
        ("test: {dataset: held_out_rows:Lines}", "defines no 'Lines'"),
        ("test: {datast: held_out_rows:Rows}", "data.test.datast: unknown key (did you mean 'dataset'?)"),
        ("test: rows.h5", "data.test: got 'rows.h5'"),
        ("validation: {args: {first: 1, length: 2, 3: 4}}", "allowed: text"),
    ],
)
def test_mistakes_in_the_file_are_explained(config_of: Any, data: str, problem: str) -> None:
    with pytest.raises(ConfigError) as caught:
        config_of(f"{{{ROWS}, {data}}}")
    assert problem in str(caught.value)


@pytest.mark.parametrize(
    ("data", "problem"),
    [
        ("validation: {args: {first: 0, length: 4, num_classes: 4}}", "num_classes is 4, but 3 in data.data"),
        (
            "validation: {dataset: hpcbal.data:digits}",
            r"data.validation.dataset hpcbal.data:digits: num_classes is 10, but 3 .*; sample_spec is \(8, 8",
        ),
        ("validation: {args: {first: 0, length: 0}}", "data.validation.dataset .* has no samples"),
    ],
)
def test_a_validation_dataset_of_another_kind_is_refused(config_of: Any, data: str, problem: str) -> None:
    with pytest.raises(DataError, match=problem):
        open_source(config_of(f"{{{ROWS}, {data}}}"))


def test_a_dataset_with_its_own_split_takes_no_other(config_of: Any) -> None:
    rows = "dataset: held_out_rows:Rows, args: {first: 0, length: 20, own: true}"
    with pytest.raises(DataError, match="has validation samples of its own"):
        open_source(config_of(f"{{{rows}, validation: {{args: {{first: 9, length: 5}}}}}}"))


def test_sizes_and_labels_of_both_datasets_are_kept(array_dataset: Any) -> None:
    one, other = (array_dataset(np.zeros((n, 2), np.uint8)) for n in (4, 3))
    one.sizes, other.sizes = [1, 2, 3, 4], [5, 6, 7]
    both = WithOwnValidation(one, other)
    assert both.sizes is not None
    assert both.sizes.tolist() == [1, 2, 3, 4, 5, 6, 7]
    assert both.labels is not None
    assert both.labels.tolist() == [0, 1, 2, 0, 0, 1, 2]
    other.sizes = None
    with pytest.raises(DataError, match=r"data\.validation declares no sizes"):
        WithOwnValidation(one, other)


def test_labels_of_another_kind_are_refused(array_dataset: Any) -> None:
    one, other = (array_dataset(np.zeros((4, 2), np.uint8)) for _ in range(2))
    other.label_spec = LabelSpec((2,), "float32")
    with pytest.raises(DataError, match=r"the set: label_spec is LabelSpec\(shape=\(2,\)"):
        of_same_kind(other, one, "the set")


def test_samples_of_unequal_size_may_have_another_bound(array_dataset: Any) -> None:
    one, other = (array_dataset(np.zeros((4, 2), np.uint8)) for _ in range(2))
    one.sample_spec = SampleSpec.of((None, 2), "uint8", 100)
    other.sample_spec = SampleSpec.of((None, 2), "uint8", 300)
    of_same_kind(other, one, "the set")
    assert WithOwnValidation(one, other).sample_spec == other.sample_spec
