"""Each operation against NumPy or Pillow, its specs, and its errors."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from PIL import Image

from hpcbal.config.schema.operations import OPERATIONS as ALL_NAMES
from hpcbal.data.dataset import UnusableSampleError
from hpcbal.data.operations import OPERATIONS
from hpcbal.data.operations.base import OperationError
from hpcbal.data.operations.geometry import CenterCrop, RandomCrop, RandomFlip, RandomRotation, Resize
from hpcbal.data.operations.pixel_values import Normalize
from hpcbal.data.spec import SampleSpec

IMAGES = SampleSpec.of((20, 30, 3), "uint8")
ANY_IMAGES = SampleSpec.of((None, None, 3), "uint8")


def generator(seed: int = 0) -> np.random.Generator:
    return np.random.Generator(np.random.PCG64(seed))


def test_resize_is_pillows_bilinear(pixels: NDArray[np.uint8]) -> None:
    operation = Resize(height=7, width=11)
    expected = np.asarray(Image.fromarray(pixels).resize((11, 7), Image.Resampling.BILINEAR))
    np.testing.assert_array_equal(operation.apply(pixels), expected)
    assert operation.output_spec(ANY_IMAGES) == SampleSpec.of((7, 11, 3), "uint8")


@pytest.mark.parametrize("channels", [1, 2, 4])
def test_resize_treats_channels_alone(pixels: NDArray[np.uint8], channels: int) -> None:
    image = np.concatenate([pixels, pixels], axis=2)[:, :, :channels]
    resized = Resize(5, 6).apply(image)
    expected = Image.fromarray(np.ascontiguousarray(pixels[:, :, 0])).resize(
        (6, 5), Image.Resampling.BILINEAR
    )
    assert resized.shape == (5, 6, channels)
    np.testing.assert_array_equal(resized[:, :, 0], np.asarray(expected))


def test_resize_keeps_float32(pixels: NDArray[np.uint8]) -> None:
    resized = Resize(10, 15).apply(pixels.astype(np.float32) / 255)
    assert resized.dtype == np.float32
    np.testing.assert_allclose(resized * 255, Resize(10, 15).apply(pixels), atol=0.51)


def test_resize_to_the_same_size_changes_nothing(pixels: NDArray[np.uint8]) -> None:
    assert Resize(20, 30).apply(pixels) is pixels


def test_center_crop_takes_the_middle(pixels: NDArray[np.uint8]) -> None:
    np.testing.assert_array_equal(CenterCrop(10, 20).apply(pixels), pixels[5:15, 5:25])


@pytest.mark.parametrize("padding", [0, 1, 4])
def test_a_random_crop_is_a_window_of_the_padded_image(pixels: NDArray[np.uint8], padding: int) -> None:
    padded = np.pad(pixels, ((padding, padding), (padding, padding), (0, 0)))
    windows = np.lib.stride_tricks.sliding_window_view(padded, (18, 25, 3))[:, :, 0].reshape(-1, 18, 25, 3)
    seen = set()
    for seed in range(60):
        crop = RandomCrop(18, 25, padding).apply(pixels, generator(seed))
        (place,) = np.flatnonzero((windows == crop).all(axis=(1, 2, 3)))[:1]
        seen.add(int(place))
    assert len(seen) > min(10, len(windows) // 2)


def test_a_random_crop_larger_than_the_image_needs_padding(pixels: NDArray[np.uint8]) -> None:
    crop = RandomCrop(24, 34, padding=2).apply(pixels, generator())
    np.testing.assert_array_equal(crop, np.pad(pixels, ((2, 2), (2, 2), (0, 0))))


def test_a_random_crop_is_a_center_crop_in_validation(pixels: NDArray[np.uint8]) -> None:
    np.testing.assert_array_equal(RandomCrop(10, 20, 3).apply(pixels, None), pixels[5:15, 5:25])


@pytest.mark.parametrize("operation", [CenterCrop(21, 5), RandomCrop(23, 5, padding=1)])
def test_crops_larger_than_the_images_are_refused_in_advance(operation: CenterCrop | RandomCrop) -> None:
    limit = 20 if isinstance(operation, CenterCrop) else 22
    with pytest.raises(OperationError, match=rf"{operation.name}.height: got \d+, allowed: at most {limit}"):
        operation.output_spec(IMAGES)


def test_an_image_smaller_than_the_crop_is_unusable_alone(pixels: NDArray[np.uint8]) -> None:
    assert CenterCrop(21, 5).output_spec(ANY_IMAGES).shape == (21, 5, 3)
    with pytest.raises(UnusableSampleError, match=r"20x30 pixels are too few for center_crop 21x5"):
        CenterCrop(21, 5).apply(pixels)


def test_flips_mirror_half_of_the_images(pixels: NDArray[np.uint8]) -> None:
    rng = generator()
    both = RandomFlip(horizontal=True, vertical=True)
    expected = [pixels, pixels[:, ::-1], pixels[::-1], pixels[::-1, ::-1]]
    counts = np.zeros(4, int)
    for _ in range(400):
        flipped = both.apply(pixels, rng)
        counts += [np.array_equal(flipped, image) for image in expected]
    assert counts.sum() == 400
    assert counts.min() > 60


def test_a_horizontal_flip_never_swaps_top_and_bottom(pixels: NDArray[np.uint8]) -> None:
    rng = generator()
    for _ in range(30):
        flipped = RandomFlip().apply(pixels, rng)
        assert np.array_equal(flipped, pixels) or np.array_equal(flipped, pixels[:, ::-1])


def test_a_rotation_is_pillows_and_within_its_angle(pixels: NDArray[np.uint8]) -> None:
    angle = generator(3).uniform(-25, 25)
    expected = np.asarray(Image.fromarray(pixels).rotate(angle, Image.Resampling.BILINEAR))
    np.testing.assert_array_equal(RandomRotation(25).apply(pixels, generator(3)), expected)


@pytest.mark.parametrize("operation", [RandomFlip(), RandomRotation(90)])
def test_random_operations_are_off_in_validation(pixels: NDArray[np.uint8], operation: Any) -> None:
    assert operation.apply(pixels, None) is pixels
    assert operation.output_spec(IMAGES) == IMAGES


def test_operations_never_write_to_what_they_are_given(pixels: NDArray[np.uint8]) -> None:
    original = pixels.copy()
    pixels.flags.writeable = False
    operations = [Resize(9, 9), RandomCrop(20, 30, 2), RandomFlip(True, True), RandomRotation(30)]
    for operation in [*operations, CenterCrop(3, 4), Normalize()]:
        operation.apply(pixels, generator())
    np.testing.assert_array_equal(pixels, original)


def test_normalize_is_scale_then_mean_then_std(pixels: NDArray[np.uint8]) -> None:
    mean, std = [0.4, 0.5, 0.6], [0.2, 0.3, 0.4]
    expected = (pixels.astype(np.float64) / 255 - mean) / std
    result = Normalize(mean, std).apply(pixels)
    assert result.dtype == np.float32
    np.testing.assert_allclose(result, expected, rtol=1e-5, atol=1e-6)


def test_normalize_takes_one_number_for_samples_of_any_shape() -> None:
    series = np.arange(6, dtype=np.int16)
    result = Normalize(mean=1, std=2, scale=1).apply(series)
    np.testing.assert_allclose(result, (series - 1) / 2)
    assert Normalize().output_spec(SampleSpec.of((None,), "int16", 12)) == SampleSpec.of(
        (None,), "float32", 24
    )


def test_normalize_is_the_same_value_however_its_numbers_are_written() -> None:
    assert repr(Normalize(0, 1)) == repr(Normalize(0.0, 1.0))
    assert repr(Normalize([1, 2], [3, 4])) == repr(Normalize((1.0, 2.0), (3.0, 4.0)))


def test_normalize_needs_as_many_numbers_as_channels() -> None:
    with pytest.raises(
        OperationError, match=r"normalize.mean: got 2 numbers, allowed: one number, or one for"
    ):
        Normalize(mean=[0.1, 0.2]).output_spec(IMAGES)
    with pytest.raises(OperationError, match=r"normalize.std: got 3 numbers but mean has 2"):
        Normalize(mean=[0.1, 0.2], std=[1, 1, 1])


@pytest.mark.parametrize(
    ("name", "args", "message"),
    [
        (
            "resize",
            {"height": 0, "width": 4},
            "resize.height: got 0, allowed: a whole number of pixels, 1 or more",
        ),
        ("resize", {"height": 4, "width": 2.5}, "resize.width: got 2.5, allowed: a whole number of pixels"),
        ("center_crop", {"height": True, "width": 4}, "center_crop.height: got True"),
        (
            "random_crop",
            {"height": 4, "width": 4, "padding": -1},
            "random_crop.padding: got -1, allowed: a whole number, 0 or more",
        ),
        ("random_flip", {"horizontal": "yes"}, "random_flip.horizontal: got 'yes', allowed: true, false"),
        (
            "random_flip",
            {"horizontal": False},
            "random_flip: got false for both of its keys, allowed: at least one true",
        ),
        ("random_rotation", {"degrees": 0}, "random_rotation.degrees: got 0, allowed: 0 < degrees <= 180"),
        ("random_rotation", {"degrees": 181}, "got 181"),
        ("random_rotation", {"degrees": float("nan")}, "got nan"),
        (
            "normalize",
            {"std": 0},
            "normalize.std: got 0.0, allowed: a number, or a list with a number per channel, each above 0",
        ),
        ("normalize", {"std": [1, -1, 1]}, "normalize.std: got"),
        ("normalize", {"mean": "half"}, "normalize.mean: got 'half', allowed: a number, or a list"),
        ("normalize", {"mean": []}, r"normalize.std: got"),
        ("normalize", {"scale": 0}, "normalize.scale: got 0, allowed: a number above 0"),
        ("decode", {"mode": "cmyk"}, "decode.mode: got 'cmyk', allowed: rgb, gray"),
    ],
)
def test_wrong_arguments_are_named(name: str, args: dict[str, Any], message: str) -> None:
    with pytest.raises(OperationError, match=message):
        OPERATIONS[name](**args)


@pytest.mark.parametrize(
    "operation", [Resize(4, 4), CenterCrop(4, 4), RandomCrop(4, 4), RandomFlip(), RandomRotation(5)]
)
def test_image_operations_need_images(operation: Any) -> None:
    with pytest.raises(OperationError, match=rf"{operation.name}: needs images of shape \(height"):
        operation.output_spec(SampleSpec.of((20, 30), "uint8"))
    with pytest.raises(OperationError, match=r"put 'decode: {mode: rgb}' .* first"):
        operation.output_spec(None)


@pytest.mark.parametrize("operation", [Resize(4, 4), RandomRotation(5)])
def test_interpolation_needs_a_type_that_pillow_supports(operation: Any) -> None:
    with pytest.raises(
        OperationError, match=r"works on uint8 and float32 images, got .* int32; put normalize"
    ):
        operation.output_spec(SampleSpec.of((8, 8, 1), "int32"))


def test_the_config_and_the_operations_have_the_same_names_and_order() -> None:
    assert tuple(OPERATIONS) == ALL_NAMES
