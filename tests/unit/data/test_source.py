"""Samples by id: the same in every process, and a bad one is named."""

from __future__ import annotations

import asyncio
import hashlib
import pickle
import re
import subprocess
import sys
from typing import Any

import numpy as np
import pytest

from hpcbal.data import BadSample, LabelSpec, PreprocessedSamples, SampleSpec, build_operations
from hpcbal.data.operations.decode import Decode
from hpcbal.data.operations.geometry import RandomCrop, RandomFlip, RandomRotation
from hpcbal.data.operations.pixel_values import Normalize

IMAGE = np.zeros((8, 8, 3), np.uint8)
AUGMENT = (RandomCrop(8, 8, 2), RandomFlip(), RandomRotation(20), Normalize())


@pytest.fixture
def images() -> np.ndarray:
    return np.random.Generator(np.random.PCG64(5)).integers(0, 256, (20, 8, 8, 3), np.uint8)


def make(dataset: Any, operations: Any = AUGMENT, seed: int = 1, **kwargs: Any) -> PreprocessedSamples:
    return PreprocessedSamples(dataset, operations, seed=seed, validation_fraction=0.25, **kwargs)


def test_sizes_and_specs(array_dataset: Any, images: np.ndarray) -> None:
    source = make(array_dataset(images))
    assert (source.num_train, source.num_validation, source.num_positions) == (15, 5, 20)
    assert source.num_classes == 3
    assert source.sample_spec == SampleSpec.of((8, 8, 3), "float32")
    assert source.label_spec == LabelSpec()


def test_samples_and_labels_are_as_promised(array_dataset: Any, images: np.ndarray) -> None:
    source = make(array_dataset(images))
    for sample_id in source.ids_of_pass(0):
        x, y = source.sample(int(sample_id), 0, training=True)
        assert source.sample_spec.admits(x)
        assert (y.shape, y.dtype, int(y)) == ((), np.int64, sample_id % 3)


def test_a_training_sample_differs_from_pass_to_pass_and_seed_to_seed(
    array_dataset: Any, images: np.ndarray
) -> None:
    source = make(array_dataset(images))
    first = source.sample(3, 0, training=True)[0].copy()
    assert not np.array_equal(first, source.sample(3, 1, training=True)[0])
    assert not np.array_equal(first, make(array_dataset(images), seed=2).sample(3, 0, training=True)[0])
    np.testing.assert_array_equal(first, source.sample(3, 0, training=True)[0])


def test_validation_samples_never_change(array_dataset: Any, images: np.ndarray) -> None:
    source = make(array_dataset(images))
    x, _ = source.sample(3, 0, training=False)
    np.testing.assert_allclose(x, images[3] / 255, atol=1e-6)
    np.testing.assert_array_equal(x, source.sample(3, 7, training=False)[0])


DIGEST = """
import hashlib
from hpcbal.data import PreprocessedSamples, build_operations, digits
operations = build_operations([("random_crop", {"height": 8, "width": 8, "padding": 1}), ("random_flip", {}),
                               ("random_rotation", {"degrees": 9}), ("normalize", {})])
source = PreprocessedSamples(digits(), operations, seed=4, validation_fraction=0.2)
ids = source.ids_of_pass(3)
wanted = ids[:60][::order]
made = {int(i): source.sample(int(i), 3, True) for i in wanted}
digest = hashlib.sha256(ids.tobytes() + source.fingerprint.encode())
for i in sorted(made):
    digest.update(made[i][0].tobytes() + made[i][1].tobytes())
found = digest.hexdigest()
"""


def test_another_process_gives_the_same_bytes() -> None:
    """Two processes, each asked in another order, agree on order, split and every sample."""
    here: dict[str, Any] = {"order": 1}
    exec(DIGEST, here)
    program = f"order = -1{DIGEST}print(found)"
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=120
    )
    assert done.stdout == f"{here['found']}\n"
    assert len(here["found"]) == hashlib.sha256().digest_size * 2


@pytest.mark.parametrize("kind", [ZeroDivisionError, SystemExit, asyncio.CancelledError])
def test_an_exception_from_read_affects_only_that_sample(
    array_dataset: Any, images: np.ndarray, kind: type[BaseException]
) -> None:
    class Flaky(array_dataset):  # type: ignore[misc]
        def read(self, sample_id: int) -> tuple[Any, Any]:
            if sample_id == 4:
                raise kind("no such luck")
            return super().read(sample_id)

    source = make(Flaky(images))
    with pytest.raises(BadSample) as caught:
        source.sample(4, 0, training=True)
    text = str(caught.value)
    assert re.fullmatch(rf"sample 4 \(row 4\): .*test_source\.py:\d+: {kind.__name__}: no such luck", text)
    assert source.sample(5, 0, training=True)[0].shape == (8, 8, 3)


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
@pytest.mark.parametrize("shape", [(4, 4, 1), (64, 64, 4)])
def test_samples_with_nan_or_infinite_values_are_bad(
    array_dataset: Any, dtype: str, shape: tuple[int, ...]
) -> None:
    samples = np.ones((4, *shape), dtype)
    samples[0, -1, 0, 0] = np.nan
    samples[1, 0, 0, 0], samples[1, -1, 0, 0] = np.inf, -np.inf
    samples[2] = np.finfo(dtype).max  # finite, although sums of it overflow
    source = PreprocessedSamples(array_dataset(samples), [], 0, 0.5)
    size = samples[0].size
    for sample_id, reason in ((0, f"1 NaN of {size} values"), (1, f"2 infinite of {size} values")):
        for use in (lambda i: source.sample(i, 0, training=True), source.read):
            with pytest.raises(BadSample) as caught:
                use(sample_id)
            assert (caught.value.where, caught.value.reason) == (f"row {sample_id}", reason)
    assert source.sample(2, 0, training=True)[0].max() == np.finfo(dtype).max
    assert source.read(3)[1] == 0


def test_a_sample_that_overflows_in_preprocessing_is_bad(array_dataset: Any) -> None:
    samples = np.ones((4, 4, 4, 1))
    samples[2, 0, 0, 0] = 1e300
    source = PreprocessedSamples(array_dataset(samples), [Normalize()], 0, 0.5)
    with np.errstate(over="ignore"), pytest.raises(BadSample, match="1 infinite of 16 values"):
        source.sample(2, 0, training=True)


def test_a_missing_file_is_named_once(array_dataset: Any, images: np.ndarray) -> None:
    class Gone(array_dataset):  # type: ignore[misc]
        def read(self, sample_id: int) -> tuple[Any, Any]:
            return open(f"/nonexistent/{sample_id}"), 0

    with pytest.raises(BadSample, match=r"^sample 4 \(row 4\): No such file or directory$"):
        make(Gone(images)).sample(4, 0, training=True)


def test_running_out_of_memory_is_not_the_samples_fault(array_dataset: Any, images: np.ndarray) -> None:
    class Huge(array_dataset):  # type: ignore[misc]
        def read(self, sample_id: int) -> tuple[Any, Any]:
            raise MemoryError

    with pytest.raises(MemoryError):
        make(Huge(images)).sample(4, 0, training=True)


@pytest.mark.parametrize("method", ["read", "describe"])
def test_ctrl_c_is_not_the_samples_fault(array_dataset: Any, images: np.ndarray, method: str) -> None:
    class Interrupted(array_dataset):  # type: ignore[misc]
        def read(self, sample_id: int) -> tuple[Any, Any]:
            raise KeyboardInterrupt if method == "read" else OSError("no disk")

        def describe(self, sample_id: int) -> str:
            raise KeyboardInterrupt

    source = make(Interrupted(images))
    with pytest.raises(KeyboardInterrupt):
        source.sample(4, 0, training=True)
    with pytest.raises(KeyboardInterrupt):
        source.read(4)


def test_a_broken_describe_does_not_hide_the_reason(array_dataset: Any, images: np.ndarray) -> None:
    class Nameless(array_dataset):  # type: ignore[misc]
        def read(self, sample_id: int) -> tuple[Any, Any]:
            raise OSError("disk on fire")

        def describe(self, sample_id: int) -> str:
            raise KeyError(sample_id)

    with pytest.raises(BadSample, match=r"describe.. raised .*KeyError.*: OSError: disk on fire"):
        make(Nameless(images)).sample(4, 0, training=True)


@pytest.mark.parametrize(
    ("returned", "reason"),
    [
        ((IMAGE.astype(np.float64), 0), "read returned an array of shape (8, 8, 3) and type float64, prom"),
        ((np.zeros((9, 8, 3), np.uint8), 0), "read returned an array of shape (9, 8, 3)"),
        (([[0]], 0), "read returned a list of length 1, promised: an array"),
        ((b"png", 0), "read returned a value of type bytes, promised: an array"),
        ((IMAGE, 3), "label 3, allowed: whole numbers, 0..2"),
        ((IMAGE, -1), "label -1, allowed: whole numbers, 0..2"),
        ((IMAGE, 1.5), "label 1.5, allowed: whole numbers, 0..2"),
        ((IMAGE, np.float32(-0.5)), "label -0.5, allowed: whole numbers, 0..2"),
        ((IMAGE, 2**70), "label 1180591620717411303424, allowed: whole numbers, 0..2"),
        ((IMAGE, 1e30), "label 1e+30, allowed: whole numbers, 0..2"),
        ((IMAGE, float("nan")), "label: 1 NaN of 1 values"),
        ((IMAGE, "cat"), "label 'cat', allowed: whole numbers, 0..2"),
        ((IMAGE, None), "label None, allowed: whole numbers, 0..2"),
        ((IMAGE, [[0], [1, 2]]), "label [[0], [1, 2]], allowed: whole numbers, 0..2"),
        ((IMAGE, [0, 1]), "label of shape (2,), promised: () (the number of the class, not one-hot)"),
        (None, "read returned None (does it lack a return?), allowed: two values, the sample and its label"),
        (IMAGE, "read returned an array of shape (8, 8, 3) and type uint8, allowed: two values"),
        ((np.ma.masked_less(IMAGE, 1), 0), "192 of 192 values are masked, allowed: none; fill them"),
        ((IMAGE, np.ma.masked), "1 of 1 values are masked, allowed: none; fill them"),
        ((IMAGE, 0, "a.png"), "read returned a tuple of length 3, allowed: two values"),
        ({"x": IMAGE, "y": 0}, "read returned a value of type dict, allowed: two values"),
    ],
)
def test_samples_that_break_the_datasets_promises_are_bad(
    array_dataset: Any, images: np.ndarray, returned: Any, reason: str
) -> None:
    class Liar(array_dataset):  # type: ignore[misc]
        def read(self, sample_id: int) -> Any:
            return returned

    with pytest.raises(BadSample, match=re.escape(f"sample 0 (row 0): {reason}")) as caught:
        make(Liar(images)).sample(0, 0, training=True)
    assert "Error" not in caught.value.reason  # no words of Python


@pytest.mark.parametrize("label", [2, 2.0, np.uint8(2), np.float32(2), np.array(2), True + 1])
def test_a_class_may_be_a_number_of_any_type(array_dataset: Any, images: np.ndarray, label: Any) -> None:
    class Typed(array_dataset):  # type: ignore[misc]
        def read(self, sample_id: int) -> Any:
            return self.samples[sample_id], label

    _, y = make(Typed(images)).sample(3, 0, training=True)
    assert (y.shape, y.dtype, int(y)) == ((), np.int64, 2)


def test_numbers_that_a_type_of_labels_cannot_hold_are_bad(array_dataset: Any, images: np.ndarray) -> None:
    class Boxes(array_dataset):  # type: ignore[misc]
        def read(self, sample_id: int) -> Any:
            return self.samples[sample_id], [0.5, 1e300]

    dataset = Boxes(images)
    for dtype, allowed in (("float32", "numbers of type float32"), ("uint8", "whole numbers of type uint8")):
        dataset.label_spec = LabelSpec((2,), dtype)
        with pytest.raises(BadSample, match=re.escape(f"label [0.5, 1e+300], allowed: {allowed}")):
            make(dataset).sample(0, 0, training=True)


def test_labels_may_be_arrays(array_dataset: Any, images: np.ndarray) -> None:
    class Boxes(array_dataset):  # type: ignore[misc]
        def read(self, sample_id: int) -> tuple[Any, Any]:
            return self.samples[sample_id], [0.5, sample_id]

    dataset = Boxes(images)
    dataset.label_spec = LabelSpec((2,), "float32")
    _, y = make(dataset).sample(3, 0, training=True)
    np.testing.assert_array_equal(y, np.array([0.5, 3], np.float32))


def encoded(array_dataset: Any, files: list[bytes]) -> Any:
    class Encoded(array_dataset):  # type: ignore[misc]
        def read(self, sample_id: int) -> tuple[Any, Any]:
            return files[sample_id], 0

    dataset = Encoded(np.zeros((len(files), 1), np.uint8))
    dataset.sample_spec = None
    return dataset


def test_samples_of_unequal_size_stay_so_within_the_bound(array_dataset: Any, png: Any, pixels: Any) -> None:
    files = [png(pixels), png(pixels[:10]), png(pixels[:, :12]), png(np.tile(pixels, (3, 3, 1)))]
    source = make(encoded(array_dataset, files), (Decode(),), max_sample_bytes=20 * 30 * 3)
    assert source.sample_spec == SampleSpec.of((None, None, 3), "uint8", 1800)
    shapes = [source.sample(i, 0, training=True)[0].shape for i in range(3)]
    assert shapes == [(20, 30, 3), (10, 30, 3), (20, 12, 3)]
    with pytest.raises(BadSample, match=r"16200 bytes .* allowed: at most 1800; raise dataplane.max_sample"):
        source.sample(3, 0, training=True)


def test_encoded_images_may_be_any_kind_of_bytes(array_dataset: Any, png: Any, pixels: Any) -> None:
    content = png(pixels)
    files: list[Any] = [content, bytearray(content), memoryview(content), np.frombuffer(content, np.uint8)]
    source = make(encoded(array_dataset, [*files, pixels]), (Decode(),), max_sample_bytes=4000)
    for sample_id in range(4):
        np.testing.assert_array_equal(source.sample(sample_id, 0, training=True)[0], pixels)
    with pytest.raises(BadSample, match=r"returned an array of shape .*, promised: encoded image bytes"):
        source.sample(4, 0, training=True)


def test_a_bad_sample_survives_pickling() -> None:
    bad = pickle.loads(pickle.dumps(BadSample(7, "cat/a.png", "truncated")))
    assert (bad.sample_id, bad.where, bad.reason) == (7, "cat/a.png", "truncated")
    assert str(bad) == "sample 7 (cat/a.png): truncated"


def test_the_fingerprint_differs_for_other_data_only(array_dataset: Any, images: np.ndarray) -> None:
    base = make(array_dataset(images)).fingerprint
    assert make(array_dataset(images)).fingerprint == base
    renamed = array_dataset(images)
    renamed.fingerprint = "version 2"
    split = array_dataset(images)
    split.validation_ids = [0, 1, 2, 3, 4]
    others = [
        make(array_dataset(images), seed=2),
        make(array_dataset(images), (Normalize(),)),
        make(array_dataset(images), (Normalize(mean=0.1),)),
        make(array_dataset(images[:19])),
        make(array_dataset(images, num_classes=4)),
        make(renamed),
        make(split),
    ]
    assert len({base, *(other.fingerprint for other in others)}) == 1 + len(others)


def test_operations_from_the_config_and_by_hand_share_a_fingerprint(
    array_dataset: Any, images: np.ndarray
) -> None:
    by_name = build_operations([("normalize", {"mean": [0, 0, 0], "std": (1, 1, 1)})])
    by_hand = (Normalize((0.0, 0.0, 0.0), [1.0, 1.0, 1.0]),)
    assert (
        make(array_dataset(images), by_name).fingerprint == make(array_dataset(images), by_hand).fingerprint
    )


def test_where_normalize_runs_changes_neither_the_numbers_nor_the_fingerprint(
    array_dataset: Any, images: np.ndarray
) -> None:
    here, there = make(array_dataset(images)), make(array_dataset(images), on_device=True)
    assert there.fingerprint == here.fingerprint  # so that checkpoints fit both
    assert there.sample_spec == SampleSpec.of((8, 8, 3), "uint8")
    for training in (True, False):
        left, label = there.sample(3, 1, training)
        whole, same_label = here.sample(3, 1, training)
        (operation,) = there.on_device
        np.testing.assert_array_equal(operation.apply(left), whole)
        assert label == same_label


def test_a_sample_that_is_too_large_is_reported_in_the_bytes_that_the_config_bounds(
    array_dataset: Any,
) -> None:
    class Lines(array_dataset):  # type: ignore[misc]
        def read(self, sample_id: int) -> tuple[Any, Any]:
            return np.zeros((9 + sample_id, 2), np.uint8), 0

    dataset = Lines(np.zeros((8, 9, 2), np.uint8))
    dataset.sample_spec = SampleSpec.of((None, 2), "uint8")
    source = make(dataset, (Normalize(),), max_sample_bytes=9 * 2 * 4, on_device=True)
    assert source.sample(0, 0, True)[0].shape == (9, 2)
    with pytest.raises(BadSample, match=r"80 bytes after preprocessing .*, allowed: at most 72; raise"):
        source.sample(1, 0, True)
