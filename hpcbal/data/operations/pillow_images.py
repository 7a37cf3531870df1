"""Change an array (height, width, channels) with Pillow, for any number of channels."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hpcbal.data.operations.base import OperationError, require_image
from hpcbal.data.spec import SampleSpec

SUPPORTED_DTYPES = ("uint8", "float32")


def require_pillow_image(name: str, spec: SampleSpec | None) -> SampleSpec:
    """Check that samples are images of a type that Pillow can interpolate.

    Raises:
        OperationError: if they are not.
    """
    spec = require_image(name, spec)
    if spec.dtype not in SUPPORTED_DTYPES:
        raise OperationError(
            f"{name}: works on {' and '.join(SUPPORTED_DTYPES)} images, got {spec}; put normalize before it"
        )
    return spec


def through_pillow(array: NDArray[Any], change: Callable[[Any], Any]) -> NDArray[Any]:
    """Apply `change` (Pillow image -> Pillow image) to an image array.

    Args:
        array: (height, width, channels), uint8 or float32.
        change: called once for RGB, otherwise once per channel.

    Returns: (new height, new width, channels) of the same type.
    """
    from PIL import Image

    array = np.ascontiguousarray(array)
    if array.dtype == np.uint8 and array.shape[2] == 3:
        return np.asarray(change(Image.fromarray(array)))
    channels = [
        np.asarray(change(Image.fromarray(np.ascontiguousarray(array[:, :, channel]))))
        for channel in range(array.shape[2])
    ]
    return np.stack(channels, axis=2)
