"""The chain of operations is checked as a whole, before any sample is read."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from hpcbal.data.custom_operation import CustomOperation
from hpcbal.data.operations.decode import Decode, ScaledDecode
from hpcbal.data.operations.geometry import CenterCrop, RandomCrop, RandomFlip, Resize
from hpcbal.data.operations.mixing import Mixup
from hpcbal.data.operations.pixel_values import Normalize, RandomContrast
from hpcbal.data.pipeline import Pipeline, build_operations
from hpcbal.data.spec import SampleSpec
from hpcbal.errors import ConfigError, DataError


def test_specs_are_passed_from_operation_to_operation() -> None:
    pipeline = Pipeline([Decode(), Resize(32, 40), RandomCrop(28, 28), Normalize()], None)
    assert pipeline.output_spec == SampleSpec.of((28, 28, 3), "float32")
    assert pipeline.is_random
    assert not Pipeline([Decode(), Resize(8, 8)], None).is_random


def test_no_operation_is_fine_for_arrays() -> None:
    spec = SampleSpec.of((5,), "int16")
    pipeline = Pipeline([], spec)
    assert pipeline.output_spec == spec
    np.testing.assert_array_equal(pipeline.run(np.arange(5, dtype=np.int16), None), np.arange(5))


def test_the_result_is_contiguous_and_in_the_machines_byte_order() -> None:
    image = np.arange(24, dtype=">f4").reshape(2, 4, 3)
    result = Pipeline([RandomFlip()], SampleSpec.of((2, 4, 3), "float32")).run(image[:, ::-1], None)
    assert result.flags.c_contiguous
    assert result.dtype == np.dtype("=f4")
    np.testing.assert_array_equal(result, image[:, ::-1])


def test_encoded_images_need_decode() -> None:
    with pytest.raises(DataError, match=r"encoded images; put 'decode: {mode: rgb}' .* first"):
        Pipeline([], None)
    with pytest.raises(ConfigError, match=r"preprocessing\.0\.resize: .* put 'decode"):
        Pipeline([Resize(8, 8)], None)


def test_an_operation_that_does_not_fit_is_reported_with_its_place() -> None:
    with pytest.raises(
        ConfigError, match=r"preprocessing\.2\.random_crop.width: got 41, allowed: at most 40"
    ):
        Pipeline([Decode(), Resize(32, 40), RandomCrop(28, 41)], None)


def test_samples_without_a_bound_need_one() -> None:
    with pytest.raises(DataError, match=r"add resize, .* or set dataplane.max_sample_bytes"):
        Pipeline([Decode(), Normalize()], None)
    assert Pipeline([Decode(), Normalize()], None, max_sample_bytes=1000).output_spec.max_bytes == 1000


@pytest.mark.parametrize(
    ("operations", "dtype", "num_left", "travels"),
    [
        ([Normalize()], "uint8", 1, "uint8"),
        ([RandomFlip(), Normalize()], "uint8", 1, "uint8"),
        ([Normalize(), Normalize(scale=1)], "uint8", 2, "uint8"),
        ([Normalize(), RandomFlip()], "uint8", 0, "float32"),  # not at the end
        ([Normalize()], "int16", 1, "int16"),
        ([Normalize()], "bool", 1, "bool"),
        ([Normalize()], "int32", 0, "float32"),  # no byte would be saved
        ([Normalize()], "float16", 0, "float32"),  # checked for NaN after the last operation
        ([RandomFlip()], "uint8", 0, "uint8"),
        ([], "uint8", 0, "uint8"),
    ],
)
def test_elementwise_operations_at_the_end_are_left_for_the_device_if_samples_grow_by_them(
    operations: list[Any], dtype: str, num_left: int, travels: str
) -> None:
    spec = SampleSpec.of((4, 6, 3), dtype)
    here, there = Pipeline(operations, spec), Pipeline(operations, spec, on_device=True)
    assert (here.on_device, here.host_spec) == ((), here.output_spec)
    assert len(there.on_device) == num_left
    assert there.host_spec == SampleSpec.of((4, 6, 3), travels)
    assert there.output_spec == here.output_spec
    image = np.random.default_rng(0).integers(0, 2, (4, 6, 3)).astype(dtype)
    result = there.run(image, None)
    assert there.host_spec.admits(result)
    for operation in there.on_device:
        result = operation.apply(result)
    np.testing.assert_array_equal(result, here.run(image, None))
    assert result.dtype.name == there.output_spec.dtype


def test_the_bound_of_a_sample_counts_the_bytes_after_all_operations() -> None:
    spec = SampleSpec.of((None, 3), "uint8")
    there = Pipeline([Normalize()], spec, max_sample_bytes=1200, on_device=True)
    assert (there.output_spec.max_bytes, there.host_spec.max_bytes) == (1200, 300)


EXACT = Decode(exact=True)
CENTRE, CROP, FLIP, SIZE = CenterCrop(12, 14), RandomCrop(10, 9), RandomFlip(), Resize(16, 18)


@pytest.mark.parametrize(
    ("operations", "num_fixed", "shape"),
    [
        ([EXACT, SIZE, CROP, FLIP, Normalize()], 2, (16, 18, 3)),
        ([EXACT, CENTRE, Normalize(), RandomContrast(0.5)], 3, (12, 14, 3)),
        ([EXACT, CROP, SIZE], 1, (None, None, 3)),
        ([EXACT, SIZE, CENTRE], 3, (12, 14, 3)),
        ([EXACT, SIZE, Mixup(0.2), Normalize()], 2, (16, 18, 3)),
    ],
)
def test_what_comes_before_the_first_random_operation_can_be_kept(
    operations: list[Any], num_fixed: int, shape: tuple[int | None, ...], pixels: Any, png: Any
) -> None:
    pipeline = Pipeline(operations, None)
    assert pipeline.prepared_spec is not None
    assert pipeline.prepared_spec.shape == shape
    kept = pipeline.prepare(png(pixels))
    assert isinstance(kept, np.ndarray)
    assert pipeline.prepared_spec.admits(kept)
    assert kept.flags.c_contiguous
    step: Any = png(pixels)
    for operation in operations[:num_fixed]:
        step = operation.apply(step, None)
    np.testing.assert_array_equal(kept, step)
    copy = kept.copy()
    copy.flags.writeable = False
    for seed in range(5):
        step = kept
        rng = np.random.default_rng(seed)
        for operation in [each for each in operations[num_fixed:] if each not in pipeline.mixing]:
            step = operation.apply(step, rng)
        done = pipeline.finish(pipeline.complete(copy, np.random.default_rng(seed)))
        np.testing.assert_array_equal(done, step)
        whole = pipeline.finish(pipeline.run(png(pixels), np.random.default_rng(seed)))
        np.testing.assert_array_equal(whole, step)


def test_a_random_crop_of_a_resized_image_is_the_same_whether_or_not_the_image_is_kept(
    pixels: Any, png: Any
) -> None:
    operations = (Decode(), CENTRE, Resize(9, 8), RandomCrop(5, 6))
    pipeline, together = Pipeline(operations, None), ScaledDecode.of(operations)
    assert together is not None
    assert together.num_operations == 4
    for kind in ("PNG", "JPEG"):
        large = png(np.kron(pixels, np.ones((6, 6, 1), np.uint8)), kind)
        kept = pipeline.prepare(large)
        assert isinstance(kept, np.ndarray)
        assert kept.shape == (9, 8, 3)
        for seed in range(9):
            one = pipeline.complete(kept, np.random.default_rng(seed))
            np.testing.assert_array_equal(one, together.apply(large, np.random.default_rng(seed)))


def test_nothing_can_be_kept_where_a_random_crop_comes_before_the_resize() -> None:
    assert Pipeline([Decode(), CROP, SIZE, FLIP], None).prepared_spec is None


def test_nothing_can_be_kept_of_encoded_images_that_a_users_operation_decodes() -> None:
    def decode(data: bytes, rng: Any) -> Any:
        return np.full((2, 2, 3), len(data), np.uint8)

    def spec(given: SampleSpec | None) -> SampleSpec:
        return SampleSpec.of((2, 2, 3), "uint8")

    pipeline = Pipeline([CustomOperation("own:Decode", {}, decode, spec)], None)
    assert pipeline.prepared_spec is None
    assert pipeline.prepare(b"abc") == b"abc"
    np.testing.assert_array_equal(pipeline.run(b"abc", None), np.full((2, 2, 3), 3))


def test_operations_are_built_from_names() -> None:
    wanted = [("decode", {}), ("resize", {"height": 4, "width": 5}), ("normalize", {"mean": [1, 2, 3]})]
    assert build_operations(wanted) == (Decode("rgb"), Resize(4, 5), Normalize((1.0, 2.0, 3.0)))


def test_all_problems_of_a_list_are_reported_together() -> None:
    wanted = [("resise", {}), ("resize", {"height": 4}), ("decode", {"mod": "rgb"}), ("resize", {})]
    with pytest.raises(ConfigError) as caught:
        build_operations([*wanted, ("random_crop", {"height": -4, "width": 4})])
    assert [problem.split(",")[0] for problem in caught.value.problems] == [
        "preprocessing.0.resise: unknown operation",
        "preprocessing.1.resize: missing width",
        "preprocessing.2.decode.mod: unknown key",
        "preprocessing.3.resize: missing height",
        "preprocessing.4.random_crop.height: got -4",
    ]
    assert "did you mean 'resize'?" in caught.value.problems[0]
    assert "did you mean 'mode'?" in caught.value.problems[2]
