"""Good images are decoded as Pillow sees them; broken ones report what is wrong and stop nothing."""

from __future__ import annotations

import io
import struct
import zlib
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from PIL import Image

from hpcbal.data.dataset import UnusableSampleError
from hpcbal.data.operations.base import OperationError
from hpcbal.data.operations.decode import Decode
from hpcbal.data.spec import SampleSpec

Png = Callable[..., bytes]


def save(image: Image.Image, file_format: str = "PNG") -> bytes:
    buffer = io.BytesIO()
    image.save(buffer, file_format)
    return buffer.getvalue()


def test_a_png_comes_back_exactly(pixels: NDArray[np.uint8], png: Png) -> None:
    np.testing.assert_array_equal(Decode("rgb").apply(png(pixels)), pixels)


def test_a_jpeg_comes_back_nearly(pixels: NDArray[np.uint8], png: Png) -> None:
    decoded = Decode("rgb").apply(png(pixels, "JPEG")).astype(int)
    assert np.abs(decoded - pixels).mean() < 3


def test_gray_is_one_channel_whatever_the_file_holds(pixels: NDArray[np.uint8], png: Png) -> None:
    expected = np.asarray(Image.fromarray(pixels).convert("L"))[:, :, np.newaxis]
    np.testing.assert_array_equal(Decode("gray").apply(png(pixels)), expected)
    gray_file = png(np.ascontiguousarray(pixels[:, :, 0]))
    np.testing.assert_array_equal(Decode("gray").apply(gray_file), pixels[:, :, :1])
    np.testing.assert_array_equal(Decode("rgb").apply(gray_file), np.repeat(pixels[:, :, :1], 3, axis=2))


@pytest.mark.parametrize("mode", ["rgb", "gray"])
@pytest.mark.parametrize("stored", ["RGBA", "P", "LA", "CMYK", "1"])
def test_every_kind_of_pixel_is_converted(pixels: NDArray[np.uint8], mode: str, stored: str) -> None:
    image = Image.fromarray(pixels).convert(stored)
    decoded = Decode(mode).apply(save(image, "JPEG" if stored == "CMYK" else "PNG"))
    assert decoded.shape == (20, 30, 3 if mode == "rgb" else 1)
    assert decoded.dtype == np.uint8
    assert decoded.std() > 20


def test_sixteen_bits_keep_the_upper_eight(png: Png) -> None:
    deep = (np.arange(256, dtype=np.uint16) * 256 + 7).reshape(16, 16)
    np.testing.assert_array_equal(Decode("gray").apply(png(deep))[:, :, 0], deep >> 8)
    np.testing.assert_array_equal(Decode("rgb").apply(png(deep))[:, :, 2], deep >> 8)


@pytest.mark.parametrize(
    ("values", "held"),
    [
        (np.float32([[0.2, 0.7]]), "floating-point numbers"),
        (np.int32([[0, 65_536]]), "numbers beyond 0..65535"),
        (np.int32([[-1, 3]]), "numbers beyond 0..65535"),
        (np.int32([[0, 255]]), "32-bit numbers from 0 to 255"),
    ],
)
@pytest.mark.parametrize("exact", [True, False])
def test_numbers_that_bytes_cannot_hold_are_not_cut(values: NDArray[Any], held: str, exact: bool) -> None:
    tiff = save(Image.fromarray(values), "TIFF")
    with pytest.raises(UnusableSampleError, match=rf"^an image of {held}, allowed: bytes or 16 bits"):
        Decode("gray", exact=exact).apply(tiff)
    tiff = save(Image.fromarray(np.int32([[0, 65_535]])), "TIFF")
    assert Decode("gray", exact=exact).apply(tiff).ravel().tolist() == [0, 255]


def test_a_palette_with_transparency_causes_no_warning(pixels: NDArray[np.uint8]) -> None:
    buffer = io.BytesIO()
    image = Image.fromarray(pixels).convert("P", palette=Image.Palette.ADAPTIVE)
    image.save(buffer, "PNG", transparency=bytes(range(256)))
    assert Decode("rgb").apply(buffer.getvalue()).shape == (20, 30, 3)


def test_odd_metadata_does_not_spoil_an_image(pixels: NDArray[np.uint8]) -> None:
    buffer = io.BytesIO()
    Image.fromarray(pixels).save(buffer, "JPEG", exif=b"Exif\0\0MM\0*\0\0\0\x08\xff\xff")
    assert Decode("rgb").apply(buffer.getvalue()).shape == (20, 30, 3)


@pytest.mark.parametrize("file_format", ["PNG", "JPEG"])
def test_a_truncated_file_is_unusable_wherever_it_ends(
    pixels: NDArray[np.uint8], png: Png, file_format: str
) -> None:
    noise = np.random.Generator(np.random.PCG64(0)).integers(0, 256, (40, 40, 3), np.uint8)
    content = png(noise, file_format)
    for length in (1, 9, 30, len(content) // 4, len(content) // 2, len(content) * 9 // 10):
        with pytest.raises(UnusableSampleError) as caught:
            Decode("rgb").apply(content[:length])
        assert len(str(caught.value)) > 10, length


def test_a_damaged_png_is_unusable(png: Png) -> None:
    content = bytearray(png(np.random.Generator(np.random.PCG64(0)).integers(0, 256, (40, 40, 3), np.uint8)))
    content[len(content) // 2] ^= 0xFF
    with pytest.raises(UnusableSampleError, match=r"cannot be decoded: "):
        Decode("rgb").apply(bytes(content))


def test_text_and_empty_files_are_not_images() -> None:
    with pytest.raises(UnusableSampleError, match=r"not an image that Pillow can read \(known: PNG, JPEG"):
        Decode("rgb").apply(b"<html>404 not found</html>")
    with pytest.raises(UnusableSampleError, match=r"the file is empty"):
        Decode("rgb").apply(b"")


@pytest.mark.parametrize("side", [12_000, 40_000])
def test_a_decompression_bomb_is_unusable_before_it_fills_the_memory(side: int) -> None:
    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    header = struct.pack(">IIBBBBB", side, side, 8, 2, 0, 0, 0)
    bomb = (
        b"\x89PNG\r\n\x1a\n"
        + chunk(b"IHDR", header)
        + chunk(b"IDAT", zlib.compress(b""))
        + chunk(b"IEND", b"")
    )
    with pytest.raises(UnusableSampleError, match=r"too large to be decoded: .*pixels"):
        Decode("rgb").apply(bomb)


def test_the_spec_is_images_of_any_size() -> None:
    assert Decode().output_spec(None) == SampleSpec.of((None, None, 3), "uint8")
    assert Decode("gray").output_spec(None) == SampleSpec.of((None, None, 1), "uint8")


def test_arrays_need_no_decoding() -> None:
    with pytest.raises(OperationError, match=r"needs encoded images, got arrays .*; remove decode"):
        Decode().output_spec(SampleSpec.of((8, 8, 1), "uint8"))
