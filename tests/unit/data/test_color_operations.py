"""Operations on colours and parts of images, against Pillow, `colorsys` and plain arithmetic."""

from __future__ import annotations

import colorsys
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from PIL import Image, ImageEnhance

from hpcbal.data.dataset import UnusableSampleError
from hpcbal.data.operations.base import OperationError
from hpcbal.data.operations.mixing import Cutout, RandomErasing
from hpcbal.data.operations.pixel_values import ColorJitter, RandomBrightness, RandomContrast
from hpcbal.data.spec import SampleSpec

Pixels = NDArray[Any]
OPERATIONS = [
    RandomBrightness(0.3),
    RandomContrast(0.5),
    ColorJitter(0.4, 0.4, 0.4, 0.1),
    RandomErasing(p=1.0),
    Cutout(7),
]


def generator(seed: int = 0) -> np.random.Generator:
    return np.random.Generator(np.random.PCG64(seed))


@pytest.fixture
def colors() -> Pixels:
    """Random RGB bytes, (20, 30, 3), with black, white and gray pixels among them."""
    image = generator(1).integers(0, 256, (20, 30, 3), np.uint8)
    image[0, :3] = [[0, 0, 0], [255, 255, 255], [128, 128, 128]]
    return image


@pytest.mark.parametrize("operation", OPERATIONS, ids=lambda operation: operation.name)
@pytest.mark.parametrize("dtype", ["uint8", "float16", "float32", "float64"])
def test_the_type_and_shape_stay_and_the_argument_is_not_written_to(
    colors: Pixels, operation: Any, dtype: str
) -> None:
    image = colors if dtype == "uint8" else (colors / 255).astype(dtype)
    image.flags.writeable = False
    spec = SampleSpec.of(image.shape, dtype)
    assert operation.output_spec(spec) == spec
    for seed in range(5):
        changed = operation.apply(image, generator(seed))
        assert spec.admits(changed)
        assert not np.array_equal(changed, image)
        np.testing.assert_array_equal(changed, operation.apply(image, generator(seed)))
    assert operation.apply(image, None) is image  # validation


@pytest.mark.parametrize("operation", OPERATIONS[:3], ids=lambda operation: operation.name)
def test_bytes_and_floating_point_numbers_are_changed_alike(colors: Pixels, operation: Any) -> None:
    for seed in range(20):
        of_bytes = operation.apply(colors, generator(seed))
        of_floats = operation.apply(colors / 255, generator(seed)) * 255
        difference = np.abs(of_bytes - of_floats)
        if operation.name == "color_jitter":
            # Pillow rounds hue, saturation and value to bytes, which moves some channels by many levels.
            assert np.percentile(difference, 95) <= 10
        else:
            assert difference.max() <= 1.01
        assert difference.mean() < 2.5


def test_brightness_adds_a_part_of_the_range(colors: Pixels) -> None:
    found = []
    for seed in range(40):
        delta = generator(seed).uniform(-0.4, 0.4)
        expected = np.clip(colors.astype(int) + round(255 * delta), 0, 255)
        np.testing.assert_array_equal(RandomBrightness(0.4).apply(colors, generator(seed)), expected)
        found.append(delta)
    assert min(found) < -0.3 < 0.3 < max(found)


def test_contrast_stretches_about_the_mean_of_each_channel(colors: Pixels) -> None:
    for seed in range(10):
        factor = generator(seed).uniform(0.4, 1.6)
        mean = colors.astype(float).mean(axis=(0, 1))
        expected = np.clip((colors - mean) * factor + mean, 0, 255)
        result = RandomContrast(0.6).apply(colors, generator(seed))
        np.testing.assert_allclose(result, expected, atol=0.51)


@pytest.mark.parametrize(
    ("key", "enhance"),
    [
        ("brightness", ImageEnhance.Brightness),
        ("contrast", ImageEnhance.Contrast),
        ("saturation", ImageEnhance.Color),
    ],
)
def test_jitter_of_one_property_is_pillows(colors: Pixels, key: str, enhance: Callable[..., Any]) -> None:
    operation = ColorJitter(**{key: 0.7})
    for seed in range(10):
        factor = generator(seed).uniform(0.3, 1.7)
        expected = np.asarray(enhance(Image.fromarray(colors)).enhance(factor))
        np.testing.assert_array_equal(operation.apply(colors, generator(seed)), expected)
        floats = operation.apply(colors / 255, generator(seed)) * 255
        np.testing.assert_allclose(floats, expected, atol=1.51)  # Pillow rounds twice, and truncates


def test_jitter_of_the_hue_turns_it_and_keeps_saturation_and_value(colors: Pixels) -> None:
    for seed in range(5):
        amount = generator(seed).uniform(-0.5, 0.5)
        result = ColorJitter(hue=0.5).apply(colors / 255, generator(seed))
        for before, after in zip((colors / 255).reshape(-1, 3), result.reshape(-1, 3), strict=True):
            hue, saturation, value = colorsys.rgb_to_hsv(*before)
            expected = colorsys.hsv_to_rgb((hue + amount) % 1.0, saturation, value)
            np.testing.assert_allclose(after, expected, atol=1e-9)


def test_jitter_changes_properties_in_every_order(colors: Pixels) -> None:
    operation = ColorJitter(brightness=0.5, contrast=0.5)
    orders = {tuple(key for key, _ in operation._draw(generator(seed))) for seed in range(20)}
    assert orders == {("brightness", "contrast"), ("contrast", "brightness")}


def test_jitter_of_gray_images(colors: Pixels) -> None:
    gray = colors[:, :, :1]
    result = ColorJitter(brightness=0.5, contrast=0.5).apply(gray, generator())
    assert result.shape == gray.shape
    with pytest.raises(OperationError, match=r"saturation and hue need images with 3 channels, got \(20, 30"):
        ColorJitter(hue=0.1).output_spec(SampleSpec.of((20, 30, 1), "uint8"))
    with pytest.raises(OperationError, match="needs images with 1 or 3 channels"):
        ColorJitter(brightness=0.1).output_spec(SampleSpec.of((20, 30, 4), "uint8"))


@pytest.mark.parametrize("operation", OPERATIONS[:3], ids=lambda operation: operation.name)
def test_numbers_outside_the_range_make_a_sample_unusable(operation: Any) -> None:
    image = generator().normal(0.0, 1.0, (4, 4, 3))
    with pytest.raises(UnusableSampleError, match=r"values from -.* allowed: 0 to 1 .* before a normalize"):
        operation.apply(image, generator())
    with pytest.raises(OperationError, match=rf"{operation.name}: works on images of uint8 .* got .* int16"):
        operation.output_spec(SampleSpec.of((4, 4, 3), "int16"))
    with pytest.raises(OperationError, match="needs images"):
        operation.output_spec(SampleSpec.of((4, 3), "uint8"))


def covered_part(image: Pixels, value: int) -> tuple[int, int]:
    """Height and width of the one rectangle that has this value, which nothing else has."""
    is_covered = (image == value).all(axis=2)
    rows, columns = np.flatnonzero(is_covered.any(axis=1)), np.flatnonzero(is_covered.any(axis=0))
    if not len(rows):
        return 0, 0
    height, width = rows[-1] - rows[0] + 1, columns[-1] - columns[0] + 1
    assert is_covered.sum() == height * width
    return int(height), int(width)


def test_erasing_covers_rectangles_in_the_given_ranges(colors: Pixels) -> None:
    image = np.maximum(np.minimum(colors, 250), 1)
    operation = RandomErasing(p=0.5, scale=(0.1, 0.3), ratio=(0.5, 2.0), value=255)
    sizes = [covered_part(operation.apply(image, generator(seed)), 255) for seed in range(300)]
    covered = np.array([size for size in sizes if size != (0, 0)])
    assert 110 < len(covered) < 190
    areas, ratios = covered.prod(axis=1) / 600, covered[:, 0] / covered[:, 1]
    assert 0.08 < areas.min() < 0.13
    assert 0.27 < areas.max() < 0.33
    assert 0.4 < ratios.min() < 0.65
    assert 1.6 < ratios.max() < 2.4


def test_cutout_covers_a_square_that_the_border_may_cut(colors: Pixels) -> None:
    image = np.maximum(colors, 1)
    sizes = {covered_part(Cutout(6).apply(image, generator(seed)), 0) for seed in range(200)}
    assert (6, 6) in sizes
    assert min(height for height, _ in sizes) == min(width for _, width in sizes) == 3
    assert max(max(size) for size in sizes) == 6
    assert not Cutout(100).apply(image, generator()).any()


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: RandomBrightness(0), "random_brightness.factor: got 0, allowed: 0 < factor <= 1"),
        (lambda: RandomContrast(1.5), "random_contrast.factor: got 1.5"),
        (lambda: ColorJitter(), "color_jitter: got 0 for all of its keys"),
        (lambda: ColorJitter(hue=0.6), "color_jitter.hue: got 0.6, allowed: 0 <= hue <= 0.5"),
        (lambda: ColorJitter(contrast=-1), "color_jitter.contrast: got -1"),
        (lambda: Cutout(0), "cutout.size: got 0"),
        (lambda: RandomErasing(p=0), "random_erasing.p: got 0"),
        (lambda: RandomErasing(scale=(0.3, 0.1)), r"random_erasing.scale: got \(0.3, 0.1\), .* both <= 1"),
        (lambda: RandomErasing(scale=(0.3, 1.1)), r"random_erasing.scale: got"),
        (lambda: RandomErasing(ratio=[0, 1]), r"random_erasing.ratio: got 0, allowed: a list"),
        (lambda: RandomErasing(value="gray"), "random_erasing.value: got 'gray'"),
    ],
)
def test_wrong_arguments_are_named(make: Callable[[], Any], message: str) -> None:
    with pytest.raises(OperationError, match=message):
        make()


def test_bytes_are_covered_with_bytes() -> None:
    with pytest.raises(OperationError, match=r"random_erasing.value: got 0\.5, allowed: a value of uint8"):
        RandomErasing(value=0.5).output_spec(SampleSpec.of((4, 4, 3), "uint8"))
    with pytest.raises(OperationError, match="got 256"):
        RandomErasing(value=256).output_spec(SampleSpec.of((4, 4, 3), "uint8"))
