"""Decode PNG and JPEG files into arrays, only as many pixels as the next operations need.

libjpeg decodes a JPEG at a half, a quarter or an eighth of its size for less than the whole: a block of 8x8
pixels is stored as frequencies, and the highest ones are left out. A loop in C then makes the result, of the
part that the crops leave, from one buffer into the other.

All random numbers are drawn as the operations draw them one by one, for the size of the image in the file.
"""

from __future__ import annotations

import io
import math
import warnings
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from hpcbal.config.schema import operations
from hpcbal.data.dataset import UnusableSampleError
from hpcbal.data.operations._resampling import resample
from hpcbal.data.operations.base import OperationError, OwnOperation
from hpcbal.data.operations.geometry import CenterCrop, RandomCrop, Resize
from hpcbal.data.spec import SampleSpec

FORMATS = ("PNG", "JPEG", "BMP", "GIF", "TIFF", "WEBP")
"""Formats that Pillow may try; formats that run other programs or read other files are left out."""

MAX_BYTE = 255
MAX_16_BITS = 2**16 - 1
_NO_BYTES = "an image of {held}, allowed: bytes or 16 bits; read it in a dataset of your own, as an array"

_CHANNELS = {"rgb": 3, "gray": 1}
_PILLOW_MODE = {"rgb": "RGB", "gray": "L"}
_COLOR_SPACE = {"rgb": "RGB", "gray": "GRAY"}
_OF_LIBJPEG = ("JPEG", "MPO")
"""Pillow's names of JPEG, and of several of them in one file."""
_START_OF_JPEG = b"\xff\xd8\xff"
_COLORS = ("YCbCr", "RGB", "Gray")
"""Of a JPEG that simplejpeg can decode to gray or RGB, as it names them."""

_SCALES = (8, 4, 2)
SCALED_GAP = 1.5
"""A JPEG is decoded at a fraction of its size if it still shrinks by this then. So the PSNR to the exact
result is 40 dB or more for images with the spectrum of photographs, a brightness with a standard deviation of
up to 40 of 255 levels, and colours that vary a quarter as much; mostly it is 45 to 55 dB."""
ROUGH_GAP = 1.25
"""A whole JPEG that shrinks by this is decoded without interpolation of its colours, which mostly have half
the resolution, and with the fastest arithmetic: 42 dB or more for the same images."""

T = TypeVar("T")
Size = tuple[int, int]
"""Height and width in pixels."""


def _effort(gap: float) -> tuple[int, bool]:
    """At which fraction of its size a JPEG is decoded, and whether roughly, if it shrinks by `gap`."""
    scale = next((scale for scale in _SCALES if gap >= SCALED_GAP * scale), 1)
    return scale, scale == 1 and gap >= ROUGH_GAP


@cache
def _simplejpeg() -> Any:
    """The module; None if it is not installed."""
    try:
        import simplejpeg
    except ImportError:
        return None
    return simplejpeg


class Decode(OwnOperation, operations.DecodeArgs):
    """Turns encoded images into uint8 arrays (height, width, 3 or 1), values 0..255.

    Transparency is dropped, 16-bit images keep their upper 8 bits, only the first frame of an animation is
    used, and the EXIF orientation is not applied.
    """

    name = "decode"

    def output_spec(self, spec: SampleSpec | None) -> SampleSpec:
        """Images of any height and width."""
        if spec is not None:
            raise OperationError(
                f"decode: needs encoded images, got arrays {spec}; remove decode (it can only be first)"
            )
        return SampleSpec.of((None, None, _CHANNELS[self.mode]), "uint8")

    def apply(self, sample: Any, rng: np.random.Generator | None = None) -> NDArray[Any]:
        """Decode the bytes of one image file.

        Raises:
            UnusableSampleError: if the image has no known format, is damaged, truncated, or unreasonably
                large, or its pixels are floating-point numbers or have more than 16 bits.
        """
        if not self.exact and self.mode == "rgb":  # gray is what Pillow makes of RGB
            whole = self._by_simplejpeg(sample, lambda height, width: 1.0)
            if whole is not None:
                return whole[0]
        return self._opened(sample, self._to_array)

    def shrunk(self, sample: Any, gap_of: Callable[[int, int], float]) -> tuple[NDArray[Any], Size, int]:
        """Decode the bytes of one image file that shrinks next: a JPEG with no more pixels than that needs.

        Args:
            gap_of: by how much an image of a height and a width in pixels shrinks, at least, in both
                directions.

        Returns: a C-contiguous image; height and width of the image in the file; and how many of its pixels
            are one pixel of the result in each direction: 1, 2, 4 or 8.

        Raises:
            UnusableSampleError: as `apply`, for the same files.
        """

        def by_pillow(image: Any) -> tuple[NDArray[Any], Size, int]:
            size, scale = (image.height, image.width), 1
            if image.format in _OF_LIBJPEG and image.mode in _PILLOW_MODE.values():
                scale, is_rough = _effort(gap_of(*size))
                image.draft(_PILLOW_MODE[self.mode], (image.width // scale, image.height // scale))
                image.decoderconfig = (scale, int(is_rough))
            return np.ascontiguousarray(self._to_array(image)), size, scale

        return self._by_simplejpeg(sample, gap_of) or self._opened(sample, by_pillow)

    def _by_simplejpeg(
        self, sample: Any, gap_of: Callable[[int, int], float]
    ) -> tuple[NDArray[Any], Size, int] | None:
        """Decode with simplejpeg: the same bytes as with Pillow, in about two thirds of the time.

        Returns: None if simplejpeg is not installed, or the file is not a perfect JPEG of usual colours and
            size: Pillow decides what such a file is worth.
        """
        simplejpeg = _simplejpeg()
        if simplejpeg is None or bytes(sample[:3]) != _START_OF_JPEG:
            return None
        from PIL import Image

        try:
            height, width, colors, _ = simplejpeg.decode_jpeg_header(sample)
            if colors not in _COLORS or height * width > (Image.MAX_IMAGE_PIXELS or math.inf):
                return None
            scale, is_rough = _effort(gap_of(height, width))
            pixels: NDArray[np.uint8] = simplejpeg.decode_jpeg(
                sample,
                colorspace=_COLOR_SPACE[self.mode],
                fastdct=is_rough,
                fastupsample=is_rough,
                min_height=-(-height // scale),
                min_width=-(-width // scale),
            )
        except ValueError:
            return None
        return pixels, (height, width), scale

    @staticmethod
    def _opened(sample: Any, decode: Callable[[Any], T]) -> T:
        """Open a file with Pillow, and return `decode` of the image; errors are those of `apply`."""
        from PIL import Image, UnidentifiedImageError

        if len(sample) == 0:
            raise UnusableSampleError("the file is empty")
        with warnings.catch_warnings():
            # Odd metadata does not make an image unusable, but a decompression bomb must not fill the memory.
            warnings.simplefilter("ignore")
            warnings.simplefilter("error", Image.DecompressionBombWarning)
            try:
                with Image.open(io.BytesIO(sample), formats=FORMATS) as image:
                    return decode(image)
            except UnidentifiedImageError:
                known = ", ".join(FORMATS)
                raise UnusableSampleError(f"not an image that Pillow can read (known: {known})") from None
            except (Image.DecompressionBombWarning, Image.DecompressionBombError) as error:
                raise UnusableSampleError(f"too large to be decoded: {error}") from None
            except (MemoryError, UnusableSampleError):
                raise
            except Exception as error:  # Pillow's plugins raise many types on damaged files
                raise UnusableSampleError(f"cannot be decoded: {type(error).__name__}: {error}") from error

    def _to_array(self, image: Any) -> NDArray[Any]:
        if image.mode == "F":  # Pillow would cut 0.7 to 0, and 3000.0 to 255
            raise UnusableSampleError(_NO_BYTES.format(held="floating-point numbers"))
        if image.mode == "I" or image.mode.startswith("I;16"):
            # Pillow would clip 16-bit values to 255 instead of scaling them.
            values = np.asarray(image)
            if values.min() < 0 or values.max() > MAX_16_BITS:
                raise UnusableSampleError(_NO_BYTES.format(held=f"numbers beyond 0..{MAX_16_BITS}"))
            if image.mode == "I" and 0 < values.max() <= MAX_BYTE:  # in 16 bits they would be black
                raise UnusableSampleError(_NO_BYTES.format(held=f"32-bit numbers from 0 to {MAX_BYTE}"))
            gray = (values >> 8).astype(np.uint8)[:, :, np.newaxis]
            return gray if self.mode == "gray" else np.repeat(gray, 3, axis=2)
        if image.mode == "P" and "transparency" in image.info:
            image = image.convert("RGBA")
        target = _PILLOW_MODE[self.mode]
        if image.mode != target:
            image = image.convert(target)
        pixels = np.asarray(image)
        return pixels[:, :, np.newaxis] if pixels.ndim == 2 else pixels


Crop = CenterCrop | RandomCrop


class ScaledDecode:
    """`decode`, any crops, `resize`, and any crops, for images of bytes; close to them one by one.

    Attributes:
        num_operations: how many operations of a chain it replaces.
        is_random: whether one of the crops is random.
    """

    def __init__(self, decode: Decode, before: Sequence[Crop], resize: Resize, after: Sequence[Crop]) -> None:
        self._decode = decode
        self._before, self._resize, self._after = tuple(before), resize, tuple(after)
        self.num_operations = 2 + len(before) + len(after)
        self.is_random = any(crop.is_random for crop in (*before, *after))

    @classmethod
    def of(cls, operations: Sequence[object]) -> ScaledDecode | None:
        """Return what replaces the first operations of a chain; None if they are not to be replaced."""
        if not operations or not isinstance(operations[0], Decode) or operations[0].exact:
            return None
        before = _crops(operations[1:])
        rest = operations[1 + len(before) :]
        if not rest or not isinstance(rest[0], Resize):
            return None
        return cls(operations[0], before, rest[0], _crops(rest[1:]))

    def output_spec(self, spec: SampleSpec | None) -> SampleSpec:
        """The spec after the last of the operations."""
        for operation in (self._decode, *self._before, self._resize, *self._after):
            spec = operation.output_spec(spec)
        assert spec is not None
        return spec

    def apply(self, sample: Any, rng: np.random.Generator | None) -> NDArray[Any]:
        """Make one sample from the bytes of an image file.

        Raises:
            UnusableSampleError: as the operations do one by one.
        """
        image, (height, width), scale = self._decode.shrunk(sample, self._gap)
        top = left = 0
        for crop in self._before:
            down, right = crop.place(height, width, rng)
            top, left, height, width = top + down, left + right, crop.height, crop.width
        row = column = 0
        rows, columns = self._resize.height, self._resize.width
        for crop in self._after:
            down, right = crop.place(rows, columns, rng)
            row, column, rows, columns = row + down, column + right, crop.height, crop.width
        out = np.empty((rows, columns, image.shape[2]), np.uint8)
        resample(
            image,
            *_axis(top, height, self._resize.height, scale),
            *_axis(left, width, self._resize.width, scale),
            self._resize.height,
            row,
            self._resize.width,
            column,
            out,
        )
        return out

    def _gap(self, height: int, width: int) -> float:
        """By how much an image shrinks, at least, in both directions."""
        if self._before:  # a crop that does not fit is found once the image is decoded
            height, width = self._before[-1].height, self._before[-1].width
        return min(height / self._resize.height, width / self._resize.width)


def _crops(operations: Sequence[object]) -> list[Crop]:
    """Return the crops at the start of a chain, up to the first that adds pixels."""
    crops: list[Crop] = []
    for operation in operations:
        if isinstance(operation, CenterCrop) or (isinstance(operation, RandomCrop) and not operation.padding):
            crops.append(operation)
        else:
            break
    return crops


def _axis(first: int, length: int, count: int, scale: int) -> tuple[float, float, float]:
    """Where a part of an image is in one of its axes, and half the base of the filter, in decoded pixels.

    Args:
        first, length: the part, in pixels of the file.
        count: pixels that it becomes.
        scale: pixels of the file for each decoded one.
    """
    # A triangle of half base h has the variance h**2 / 6, and the mean over `scale` pixels, which decoding
    # is about, (scale**2 - 1) / 12. Both together shall be as wide as the exact filter.
    half = max(length / count, 1.0)
    if scale > 1:
        half = math.sqrt(half**2 - (scale**2 - 1) / 2)
    return first / scale, (first + length) / scale, half / scale
