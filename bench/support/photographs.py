"""JPEGs that are like photographs: noise whose amplitudes fall with the frequency."""

from __future__ import annotations

import io

import numpy as np
from numpy.typing import NDArray
from PIL import Image


def noise(rng: np.random.Generator, height: int, width: int) -> NDArray[np.float64]:
    """Noise of mean 0, whose amplitudes fall as one over the frequency.

    Returns: shape (height, width), with a standard deviation of about 1 for 500x500 pixels. It is less for
        smaller images, which are like parts of larger ones.
    """
    frequency = np.hypot(np.fft.fftfreq(height)[:, np.newaxis], np.fft.rfftfreq(width))
    frequency[0, 0] = np.inf
    spectrum = np.exp(2j * np.pi * rng.random(frequency.shape)) / frequency
    values: NDArray[np.float64] = np.fft.irfft2(spectrum, s=(height, width))
    return values * np.sqrt(height * width) / 6.0


def photograph(
    rng: np.random.Generator, height: int, width: int, contrast: float, mode: str = "RGB"
) -> Image.Image:
    """An image of noise, whose colours vary a quarter as much as its brightness.

    Args:
        contrast: standard deviation of the brightness of 500x500 pixels, of 255.
        mode: of the image, as Pillow names it.
    """
    light, blue, red = (contrast * noise(rng, height, width) for _ in range(3))
    pixels = np.stack([128 + light, 128 + blue / 4, 128 + red / 4], axis=2).clip(0, 255).astype(np.uint8)
    return Image.fromarray(pixels, mode="YCbCr").convert(mode)


def encoded(image: Image.Image, file_format: str = "JPEG", **options: object) -> bytes:
    """The file of an image; JPEGs have quality 90 unless the options say otherwise."""
    buffer = io.BytesIO()
    if file_format == "JPEG":
        options = {"quality": 90, **options}
    image.save(buffer, file_format, **options)  # type: ignore[arg-type]
    return buffer.getvalue()
