"""Decode PNG and JPEG files into arrays, and report what is wrong with a broken file."""

from __future__ import annotations

import io
import warnings
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hpcbal.config.schema import operations
from hpcbal.data.dataset import UnusableSampleError
from hpcbal.data.operations.base import OperationError, OwnOperation
from hpcbal.data.spec import SampleSpec

FORMATS = ("PNG", "JPEG", "BMP", "GIF", "TIFF", "WEBP")
"""Formats that Pillow may try; formats that run other programs or read other files are left out."""

_CHANNELS = {"rgb": 3, "gray": 1}
_PILLOW_MODE = {"rgb": "RGB", "gray": "L"}


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
                large.
        """
        from PIL import Image, UnidentifiedImageError

        if len(sample) == 0:
            raise UnusableSampleError("the file is empty")
        with warnings.catch_warnings():
            # Odd metadata does not make an image unusable, but a decompression bomb must not fill the memory.
            warnings.simplefilter("ignore")
            warnings.simplefilter("error", Image.DecompressionBombWarning)
            try:
                with Image.open(io.BytesIO(sample), formats=FORMATS) as image:
                    return self._to_array(image)
            except UnidentifiedImageError:
                known = ", ".join(FORMATS)
                raise UnusableSampleError(f"not an image that Pillow can read (known: {known})") from None
            except (Image.DecompressionBombWarning, Image.DecompressionBombError) as error:
                raise UnusableSampleError(f"too large to be decoded: {error}") from None
            except MemoryError:
                raise
            except Exception as error:  # Pillow's plugins raise many types on damaged files
                raise UnusableSampleError(f"cannot be decoded: {type(error).__name__}: {error}") from error

    def _to_array(self, image: Any) -> NDArray[Any]:
        if image.mode == "I" or image.mode.startswith("I;16"):
            # Pillow would clip 16-bit values to 255 instead of scaling them.
            gray = (np.asarray(image) >> 8).clip(0, 255).astype(np.uint8)[:, :, np.newaxis]
            return gray if self.mode == "gray" else np.repeat(gray, 3, axis=2)
        if image.mode == "P" and "transparency" in image.info:
            image = image.convert("RGBA")
        target = _PILLOW_MODE[self.mode]
        if image.mode != target:
            image = image.convert(target)
        pixels = np.asarray(image)
        return pixels[:, :, np.newaxis] if pixels.ndim == 2 else pixels
