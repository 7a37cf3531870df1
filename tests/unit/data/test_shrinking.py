"""JPEGs that shrink are decoded with fewer pixels: nearly the same samples, and the same random numbers."""

from __future__ import annotations

import io
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from PIL import Image
from support.photographs import encoded, photograph

from hpcbal.data import LabelSpec, PreprocessedSamples
from hpcbal.data.dataset import UnusableSampleError
from hpcbal.data.operations import decode
from hpcbal.data.operations._resampling import resample
from hpcbal.data.operations.decode import Decode
from hpcbal.data.operations.geometry import CenterCrop, RandomCrop, RandomFlip, Resize
from hpcbal.data.operations.pixel_values import Normalize
from hpcbal.data.pipeline import Pipeline

LEAST_PSNR = 40.0


def psnr(one: NDArray[Any], other: NDArray[Any]) -> float:
    """Peak signal-to-noise ratio of two images of bytes, dB."""
    error = np.mean((one.astype(float) - other) ** 2)
    return float(10 * np.log10(255.0**2 / max(error, 1e-9)))


def both(
    file: bytes, operations: Sequence[Any], mode: str = "rgb", seed: int | None = None
) -> list[NDArray[np.uint8] | str]:
    """The sample as it is made by default, and exactly; or why it cannot be used."""
    results: list[NDArray[np.uint8] | str] = []
    ends = []
    for exact in (False, True):
        pipeline = Pipeline([Decode(mode, exact), *operations], None)
        assert pipeline.is_exact is exact
        rng = None if seed is None else np.random.default_rng(seed)
        try:
            results.append(pipeline.run(file, rng))
        except UnusableSampleError as error:
            results.append(str(error))
        ends.append(None if rng is None else rng.bit_generator.state)
    assert ends[0] == ends[1], "the same random numbers must have been drawn"
    return results


@st.composite
def chains(draw: st.DrawFn) -> tuple[bytes, list[Any], str]:
    """A file that is like a photograph, operations on it that end with a resize or a crop, and a mode."""
    height, width = draw(st.integers(40, 400)), draw(st.integers(40, 400))
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    image = photograph(
        rng, height, width, draw(st.sampled_from([20.0, 40.0])), draw(st.sampled_from(["RGB", "L"]))
    )
    file = encoded(image, subsampling=draw(st.integers(0, 2)), progressive=draw(st.booleans()))
    operations: list[Any] = []
    crop = st.sampled_from([RandomCrop, CenterCrop])
    for _ in range(draw(st.integers(0, 2))):
        height, width = draw(st.integers(30, height)) if height > 30 else height, draw(st.integers(30, width))
        operations.append(draw(crop)(height, width))
    rows, columns = draw(st.integers(12, 200)), draw(st.integers(12, 200))
    operations.append(Resize(rows, columns))
    if draw(st.booleans()):
        operations.append(draw(crop)(draw(st.integers(10, rows)), draw(st.integers(10, columns))))
    return file, operations, draw(st.sampled_from(["rgb", "gray"]))


@given(chains(), st.integers(0, 2**32))
@settings(max_examples=150, deadline=None)
def test_samples_are_nearly_those_of_exact_decoding_and_draw_the_same_numbers(
    chain: tuple[bytes, list[Any], str], seed: int
) -> None:
    file, operations, mode = chain
    ours, exact = both(file, operations, mode, seed)
    assert isinstance(ours, np.ndarray)
    assert isinstance(exact, np.ndarray)
    assert (ours.shape, ours.dtype, ours.flags.c_contiguous) == (exact.shape, exact.dtype, True)
    assert psnr(ours, exact) >= LEAST_PSNR


@given(chains(), st.integers(0, 2**32))
@settings(max_examples=40, deadline=None)
def test_exact_decoding_does_one_operation_after_another(
    chain: tuple[bytes, list[Any], str], seed: int
) -> None:
    file, operations, mode = chain
    rng, sample = np.random.default_rng(seed), Decode(mode).apply(file)
    for operation in operations:
        sample = operation.apply(sample, rng)
    np.testing.assert_array_equal(both(file, operations, mode, seed)[1], sample)


@given(chains())
@settings(max_examples=40, deadline=None)
def test_it_does_not_matter_which_library_decodes(chain: tuple[bytes, list[Any], str]) -> None:
    file, operations, mode = chain
    pipeline = Pipeline([Decode(mode), *operations], None)
    found = pipeline.run(file, None)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(decode, "_simplejpeg", lambda: None)
        np.testing.assert_array_equal(pipeline.run(file, None), found)


@given(chains())
@settings(max_examples=40, deadline=None)
def test_decoding_alone_gives_the_bytes_of_exact_decoding(chain: tuple[bytes, list[Any], str]) -> None:
    file, _, mode = chain
    np.testing.assert_array_equal(Decode(mode).apply(file), Decode(mode, True).apply(file))


def test_what_simplejpeg_refuses_is_decoded_by_pillow(monkeypatch: pytest.MonkeyPatch) -> None:
    class Strict:
        def decode_jpeg_header(self, file: bytes) -> tuple[int, int, str, str]:
            return 100, 120, "YCbCr", "420"

        def decode_jpeg(self, file: bytes, **options: Any) -> Any:
            raise ValueError("Corrupt JPEG data: premature end of data segment")

    file = encoded(photograph(np.random.default_rng(0), 100, 120, 30.0))
    monkeypatch.setattr(decode, "_simplejpeg", lambda: None)
    (wanted, _) = both(file, [Resize(20, 20)])
    monkeypatch.setattr(decode, "_simplejpeg", Strict)
    np.testing.assert_array_equal(both(file, [Resize(20, 20)])[0], wanted)


def saved(mode: str, file_format: str, **options: Any) -> bytes:
    image = photograph(np.random.default_rng(1), 90, 130, 30.0)
    if mode == "I;16":
        deep = np.asarray(image.convert("L")).astype(np.uint16) * 256
        return encoded(Image.fromarray(deep), file_format, **options)
    return encoded(image.convert(mode), file_format, **options)


def several_in_one_file() -> bytes:
    """A file of two JPEGs, as cameras write them."""
    buffer = io.BytesIO()
    first, second = (photograph(np.random.default_rng(seed), 90, 130, 30.0) for seed in (1, 2))
    first.save(buffer, "MPO", save_all=True, append_images=[second])
    return buffer.getvalue()


@pytest.mark.parametrize("mode", ["rgb", "gray"])
@pytest.mark.parametrize("size", [(20, 31), (60, 80), (90, 130), (200, 150)])
@pytest.mark.parametrize(
    "file",
    [
        saved("RGB", "PNG"),
        saved("RGBA", "PNG"),
        saved("L", "PNG"),
        saved("I;16", "PNG"),
        saved("P", "GIF"),
        saved("CMYK", "JPEG"),
        saved("L", "JPEG"),
        saved("RGB", "JPEG", keep_rgb=True),
        saved("RGB", "JPEG", exif=b"Exif\0\0MM\0*\0\0\0\x08\0\x01\x01\x12\0\x03\0\0\0\x01\0\x06\0\0\0\0\0\0"),
        several_in_one_file(),
    ],
    ids=["png", "rgba", "gray-png", "16-bit", "palette", "cmyk", "gray", "rgb", "rotated", "several"],
)
def test_every_kind_of_file_shrinks_and_grows(file: bytes, size: tuple[int, int], mode: str) -> None:
    ours, exact = both(file, [Resize(*size)], mode)
    assert isinstance(ours, np.ndarray)
    assert isinstance(exact, np.ndarray)
    assert ours.shape == (*size, 3 if mode == "rgb" else 1)
    assert psnr(ours, exact) >= LEAST_PSNR


@pytest.mark.parametrize(("height", "width"), [(1, 1), (1, 40), (7, 3), (8, 8), (17, 16)])
def test_tiny_images_are_resized(height: int, width: int) -> None:
    pixels = np.random.default_rng(0).integers(100, 110, (height, width, 3), np.uint8)
    file = encoded(Image.fromarray(pixels))
    for size in ((1, 1), (2, 5), (32, 32)):
        ours, exact = both(file, [Resize(*size)])
        assert isinstance(ours, np.ndarray)
        assert ours.shape == (*size, 3)
        assert psnr(ours, exact) >= LEAST_PSNR  # type: ignore[arg-type]


@given(
    st.lists(st.tuples(st.floats(0, 1, exclude_max=True), st.integers(0, 255)), max_size=4),
    st.floats(0, 1),
    st.booleans(),
)
@settings(max_examples=150, deadline=None)
def test_a_damaged_file_is_used_or_refused_as_with_exact_decoding(
    changed: list[tuple[float, int]], kept: float, is_progressive: bool
) -> None:
    content = bytearray(
        encoded(photograph(np.random.default_rng(0), 64, 80, 30.0), progressive=is_progressive)
    )
    for place, value in changed:
        content[int(place * len(content))] = value
    ours, exact = both(bytes(content[: round(kept * len(content))]), [Resize(16, 16)])
    if isinstance(exact, str):
        assert ours == exact
    else:
        assert isinstance(ours, np.ndarray)


def test_a_crop_that_does_not_fit_is_reported_as_with_exact_decoding() -> None:
    file = encoded(photograph(np.random.default_rng(0), 60, 80, 30.0))
    ours, exact = both(file, [RandomCrop(50, 90), Resize(10, 10)], seed=0)
    assert ours == exact == "60x80 pixels are too few for random_crop 50x90 with padding 0"


def test_only_decoding_that_is_followed_by_resize_changes() -> None:
    for operations in (
        [Decode(), RandomCrop(8, 8)],
        [Decode(), RandomFlip(), Resize(8, 8)],
        [Decode(), RandomCrop(8, 8, padding=2), Resize(4, 4)],
        [Decode("rgb", True), Resize(8, 8)],
    ):
        assert Pipeline(operations, None, max_sample_bytes=1000).is_exact
    assert not Pipeline(
        [Decode(), CenterCrop(40, 40), Resize(8, 8), RandomFlip(), Normalize()], None
    ).is_exact


class Encoded:
    """A dataset of one file."""

    sample_spec = None
    num_classes = 2

    def __init__(self, label_spec: Any) -> None:
        self.label_spec = label_spec

    def __len__(self) -> int:
        return 4

    def read(self, sample_id: int) -> tuple[bytes, int]:
        return b"", 0

    def describe(self, sample_id: int) -> str:
        return f"{sample_id}"


def test_the_fingerprint_shows_how_samples_are_decoded_where_it_matters() -> None:
    def fingerprint(exact: bool, *operations: Any) -> str:
        chain = [Decode("rgb", exact), *operations]
        return PreprocessedSamples(Encoded(LabelSpec()), chain, 0, 0.25, max_sample_bytes=1000).fingerprint

    assert (
        repr(Decode("rgb", True)) == repr(Decode("rgb")) == "Decode(mode='rgb')"
    )  # as before there was `exact`
    assert fingerprint(True, Resize(8, 8)) != fingerprint(False, Resize(8, 8))
    assert fingerprint(True, CenterCrop(8, 8)) == fingerprint(False, CenterCrop(8, 8))


# ---- the loop in C -------------------------------------------------------------------------


def weights(low: float, high: float, half: float, count: int, size: int) -> NDArray[np.float64]:
    """Weights of the pixels of an axis for those of the result, shape (count, size)."""
    centres = low + (np.arange(count) + 0.5) * (high - low) / count
    found = np.clip(1 - np.abs(np.arange(size) + 0.5 - centres[:, np.newaxis]) / half, 0, None)
    found[:, : int(np.floor(low))] = 0
    found[:, int(np.ceil(high)) :] = 0
    return found / found.sum(axis=1, keepdims=True)


@given(st.data(), st.sampled_from([1, 3]), st.integers(0, 2**32))
@settings(max_examples=80, deadline=None)
def test_c_makes_the_window_that_numpy_makes(data: st.DataObject, channels: int, seed: int) -> None:
    size = (data.draw(st.integers(1, 40)), data.draw(st.integers(1, 90)))
    image = np.random.default_rng(seed).integers(0, 256, (*size, channels), np.uint8)
    axes, counts, first, wanted = [], [], [], []
    for length in size:
        low = data.draw(st.floats(0, length - 0.5))
        high = data.draw(st.floats(low + 0.25, length))
        counts.append(data.draw(st.integers(1, 50)))
        axes.append((low, high, data.draw(st.floats(1, 30))))
        first.append(data.draw(st.integers(0, counts[-1] - 1)))
        wanted.append(data.draw(st.integers(1, counts[-1] - first[-1])))
    down, across = (
        weights(*axis, count, length) for axis, count, length in zip(axes, counts, size, strict=True)
    )
    exact = np.einsum("ij,jkc,lk->ilc", down, image.astype(float), across)
    exact = exact[first[0] : first[0] + wanted[0], first[1] : first[1] + wanted[1]]
    out = np.full((*wanted, channels), 77, np.uint8)
    resample(image, *axes[0], *axes[1], counts[0], first[0], counts[1], first[1], out)
    assert np.abs(out - exact).max() <= 0.501


def test_images_and_parts_that_do_not_fit_together_are_refused() -> None:
    image, out = np.zeros((10, 20, 3), np.uint8), np.zeros((4, 5, 3), np.uint8)
    right: list[Any] = [image, 0.0, 10.0, 2.0, 0.0, 20.0, 4.0, 5, 1, 6, 1, out]
    resample(*right)
    wrong: tuple[tuple[int, Any], ...] = (
        (0, image[:, :, :1].copy()),
        (0, image[0]),
        (0, image.astype(np.uint16)),
        (1, -0.5),
        (1, 10.0),
        (1, float("nan")),
        (2, 10.5),
        (3, 0.5),
        (3, float("inf")),
        (5, 21.0),
        (7, 0),
        (8, 2),
        (8, -1),
        (9, 5),
        (10, 2**40),
        (11, out[:0]),
        (11, np.zeros((4, 5, 1), np.uint8)),
    )
    for place, value in wrong:
        with pytest.raises(ValueError, match="do not fit together"):
            resample(*right[:place], value, *right[place + 1 :])
    for place, value in ((0, image[:, ::2]), (11, out[:, ::2])):
        with pytest.raises((BufferError, ValueError), match="contiguous"):
            resample(*right[:place], value, *right[place + 1 :])
