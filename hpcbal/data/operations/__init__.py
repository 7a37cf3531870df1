"""Preprocessing operations by the names that the config uses."""

from __future__ import annotations

from typing import Any

from hpcbal.data.operations.decode import Decode
from hpcbal.data.operations.geometry import CenterCrop, RandomCrop, RandomFlip, RandomRotation, Resize
from hpcbal.data.operations.mixing import CutMix, Cutout, Mixup, RandomErasing
from hpcbal.data.operations.pixel_values import ColorJitter, Normalize, RandomBrightness, RandomContrast

OPERATIONS: dict[str, Any] = {
    kind.name: kind
    for kind in (
        Decode,
        Resize,
        RandomCrop,
        CenterCrop,
        RandomFlip,
        RandomRotation,
        RandomBrightness,
        RandomContrast,
        ColorJitter,
        RandomErasing,
        Cutout,
        Mixup,
        CutMix,
        Normalize,
    )
}
