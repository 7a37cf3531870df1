"""A user's operations: functions and classes by import path, and what happens if they are wrong."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hpcbal.data import BadSample, PreprocessedSamples, SampleSpec, build_operations
from hpcbal.data.first_samples import check_first
from hpcbal.data.pipeline import Pipeline
from hpcbal.errors import ConfigError, DataError, UserCodeError

PAGE = Path(__file__).parents[3] / "docs" / "your-own-model-and-data.md"
MODULE = """\
import numpy as np
from hpcbal.data import SampleSpec

def shifted(sample, rng, most=2):
    return sample if rng is None else np.roll(sample, rng.integers(-most, most + 1), axis=1)

def in_place(sample, rng):
    sample += 1
    return sample

def picky(sample, rng):
    if sample[0, 0, 0] == 7:
        raise ValueError("seven")
    return sample

def forgetful(sample, rng):
    np.roll(sample, 1)

def halved(sample, rng):
    return sample / 2

def needs_rng(sample, rng):
    return sample + np.uint8(rng.integers(2))

def lonely(x):
    return x

class Interrupted:
    def __init__(self, early=False):
        if early:
            raise KeyboardInterrupt

    def output_spec(self, spec):
        raise KeyboardInterrupt

    def apply(self, sample, rng):
        return sample

class Twice:
    def __init__(self, axis=0):
        self.axis = axis

    def output_spec(self, spec):
        if self.axis >= len(spec.shape):
            raise ValueError("no such axis")
        shape = [n * (1 + (i == self.axis)) for i, n in enumerate(spec.shape)]
        return SampleSpec.of(tuple(shape), "float32")

    def apply(self, sample, rng):
        return np.repeat(sample, 2, axis=self.axis).astype("float32")

class Logarithm:
    def output_spec(self, spec):
        return SampleSpec.of(spec.shape, "float32")

    def apply(self, sample, rng):
        with np.errstate(divide="ignore"):
            return np.log(sample.astype("float32"))

class Bytes:
    def output_spec(self, spec):
        assert spec is None
        return SampleSpec.of((2, 2, 1), "uint8")

    def apply(self, sample, rng):
        return np.frombuffer(sample, np.uint8).reshape(2, 2, 1)

class Liar:
    def output_spec(self, spec):
        return "the same"

    def apply(self, sample, rng):
        return sample

class Broken:
    def __init__(self):
        raise RuntimeError("no such table")

class Idle:
    pass
"""


@pytest.fixture(autouse=True)
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    (tmp_path / "own_operations.py").write_text(MODULE)
    monkeypatch.syspath_prepend(str(tmp_path))
    yield
    sys.modules.pop("own_operations", None)


@pytest.fixture
def images() -> np.ndarray:
    """Bytes (8, 4, 6, 1); the first value of image i is i, and none but that of image 0 is 0."""
    images = np.random.Generator(np.random.PCG64(5)).integers(1, 256, (8, 4, 6, 1), np.uint8)
    images[:, 0, 0, 0] = np.arange(8)
    return images


def source_of(dataset: Any, *wanted: tuple[str, dict[str, Any]], seed: int = 1) -> PreprocessedSamples:
    return PreprocessedSamples(dataset, build_operations(wanted), seed=seed, validation_fraction=0.25)


def own(name: str, **args: Any) -> tuple[str, dict[str, Any]]:
    return f"own_operations:{name}", args


def test_a_function_gets_the_samples_random_stream(array_dataset: Any, images: np.ndarray) -> None:
    source = source_of(array_dataset(images), own("shifted", most=3))
    shifts = []
    for pass_index in range(20):
        x, _ = source.sample(3, pass_index, training=True)
        np.testing.assert_array_equal(x, source.sample(3, pass_index, training=True)[0])
        shifts += [s for s in range(-3, 4) if np.array_equal(x, np.roll(images[3], s, axis=1))][:1]
    assert len(shifts) == 20
    assert len(set(shifts)) > 3
    np.testing.assert_array_equal(source.sample(3, 0, training=False)[0], images[3])


def test_a_function_may_write_to_its_sample(array_dataset: Any, images: np.ndarray) -> None:
    before = images.copy()
    images.flags.writeable = False
    source = source_of(array_dataset(images), ("random_flip", {}), own("in_place"))
    for _ in range(2):
        np.testing.assert_array_equal(source.sample(2, 0, training=False)[0], before[2] + 1)


def test_a_class_may_change_shape_and_type(array_dataset: Any, images: np.ndarray) -> None:
    source = source_of(array_dataset(images), own("Twice", axis=1), ("normalize", {"scale": 1}))
    assert source.sample_spec == SampleSpec.of((4, 12, 1), "float32")
    x, _ = source.sample(1, 0, training=False)
    np.testing.assert_array_equal(x, np.repeat(images[1], 2, axis=1))


def test_a_class_may_decode_bytes() -> None:
    pipeline = Pipeline(build_operations([own("Bytes")]), None)
    assert pipeline.output_spec == SampleSpec.of((2, 2, 1), "uint8")
    np.testing.assert_array_equal(pipeline.run(b"\1\2\3\4", None).ravel(), [1, 2, 3, 4])
    with pytest.raises(
        ConfigError, match=r"own_operations:picky: the dataset gives encoded images; put 'dec"
    ):
        Pipeline(build_operations([own("picky")]), None)


def test_an_exception_breaks_one_sample_and_shows_the_users_line(
    array_dataset: Any, images: np.ndarray
) -> None:
    source = source_of(array_dataset(images), own("picky"))
    with pytest.raises(BadSample) as caught:
        source.sample(7, 0, training=True)
    assert re.search(r"sample 7 \(row 7\): .*own_operations\.py:13: ValueError: seven$", str(caught.value))
    source.sample(6, 0, training=True)
    check_first(source)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("forgetful", r"returned None, allowed: an array \(4, 6, 1\) uint8; does it lack a return\?"),
        ("halved", r"and type float64, allowed: .* uint8; convert it with .astype\('uint8'\), or write a cl"),
    ],
)
def test_a_wrong_result_breaks_the_sample(
    array_dataset: Any, images: np.ndarray, name: str, message: str
) -> None:
    source = source_of(array_dataset(images), own(name))
    with pytest.raises(BadSample, match=message):
        source.sample(0, 0, training=True)
    with pytest.raises(DataError, match=rf"none of the \d+ training samples .* {message}"):
        check_first(source)


def test_infinite_numbers_are_found_although_the_samples_are_bytes(
    array_dataset: Any, images: np.ndarray
) -> None:
    source = source_of(array_dataset(images), own("Logarithm"))
    source.sample(1, 0, training=True)
    with pytest.raises(BadSample, match="1 infinite of 24 values"):
        source.sample(0, 0, training=True)


def test_the_first_validation_samples_are_tried_too(array_dataset: Any, images: np.ndarray) -> None:
    """The usual mistake: in validation there is no random generator."""
    source = source_of(array_dataset(images), own("needs_rng"))
    source.sample(0, 0, training=True)
    with pytest.raises(DataError, match=r"none of the \d+ validation samples .* has no attribute 'integers'"):
        check_first(source)


@pytest.mark.parametrize("num_good", [0, 1])
def test_data_of_which_no_sample_can_be_read_is_refused(
    array_dataset: Any, images: np.ndarray, num_good: int
) -> None:
    class Unreadable(array_dataset):  # type: ignore[misc]
        def read(self, sample_id: int) -> tuple[Any, Any]:
            if sample_id in good:
                return super().read(sample_id)
            raise OSError("no disk")

    good: set[int] = set()
    source = source_of(Unreadable(np.concatenate([images] * 8)))
    if num_good:  # the data as a whole is right, so a run may skip what is broken
        good = {int(source.train_ids[-1]), int(source.validation_ids[-1])}
        check_first(source, len(source.dataset))
        return
    message = r"data: none of the \d+ training samples that were tried can be used, .*no disk\. Fix the cause"
    with pytest.raises(DataError, match=message):
        check_first(source)


@pytest.mark.parametrize(
    ("name", "args", "message"),
    [
        ("missing", {}, r"preprocessing\.0\.own_operations:missing: own_operations .* has no 'missing'"),
        ("shifted", {"wost": 1}, r"has no argument 'wost' \(did you mean 'most'\?\), allowed: most"),
        ("lonely", {}, r"is lonely\(x\), allowed: a callable that takes sample and rng first"),
        ("Twice", {"axes": 1}, r"own_operations:Twice has no argument 'axes'"),
        ("Idle", {}, r"got a class without the method apply\(self, sample, rng\)"),
    ],
)
def test_what_cannot_be_an_operation_is_refused(name: str, args: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        build_operations([own(name, **args)])


def test_all_wrong_operations_are_reported_together() -> None:
    with pytest.raises(ConfigError) as caught:
        build_operations([own("Idle"), ("resize", {}), own("lonely")])
    assert len(caught.value.problems) == 3


def test_what_a_class_raises_is_shown_with_its_line(array_dataset: Any, images: np.ndarray) -> None:
    with pytest.raises(UserCodeError, match=r"own_operations:Broken: making it failed: .*: no such table"):
        build_operations([own("Broken")])
    with pytest.raises(UserCodeError, match=r"output_spec failed .*own_operations\.py:\d+: .*no such axis"):
        source_of(array_dataset(images), own("Twice", axis=5))
    with pytest.raises(ConfigError, match=r"output_spec returned a value of type str, allowed: SampleSpec"):
        source_of(array_dataset(images), own("Liar"))


def test_ctrl_c_in_a_users_operation_is_not_its_error(array_dataset: Any, images: np.ndarray) -> None:
    with pytest.raises(KeyboardInterrupt):
        source_of(array_dataset(images), own("Interrupted"))
    with pytest.raises(KeyboardInterrupt):
        build_operations([own("Interrupted", early=True)])


def test_path_and_arguments_are_part_of_the_fingerprint(array_dataset: Any, images: np.ndarray) -> None:
    steps = [own("shifted"), own("shifted", most=3), own("picky"), own("Twice"), own("Twice", axis=1)]
    prints = [source_of(array_dataset(images), step).fingerprint for step in steps]
    assert len(set(prints)) == len(steps)
    assert prints[1] == source_of(array_dataset(images), own("shifted", most=3)).fingerprint


def test_the_examples_on_the_page_work(tmp_path: Path, array_dataset: Any, images: np.ndarray) -> None:
    (code,) = re.findall(r"`augment\.py`:\n\n```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
    (tmp_path / "augment.py").write_text(code)
    (shown,) = re.findall(r"preprocessing:\n((?:  - .*\n)+)```", PAGE.read_text())
    wanted: list[tuple[str, dict[str, Any]]] = [("augment:noisy", {"spread": 8}), ("augment:Halves", {})]
    assert re.findall(r"- (augment:\w+)", shown) == [name for name, _ in wanted]
    source = source_of(array_dataset(images), *wanted)
    check_first(source)
    assert source.sample_spec == SampleSpec.of((2, 6, 2), "uint8")
    x, _ = source.sample(5, 0, training=False)
    np.testing.assert_array_equal(x, np.concatenate([images[5, :2], images[5, 2:]], axis=2))
    assert not np.array_equal(x, source.sample(5, 0, training=True)[0])
