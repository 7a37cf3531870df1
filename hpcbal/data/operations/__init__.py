"""Preprocessing operations by the names that the config uses."""

from __future__ import annotations

from typing import Any

from hpcbal.data.operations.base import ElementwiseOperation, Operation, OperationError, OwnOperation
from hpcbal.data.operations.decode import Decode
from hpcbal.data.operations.geometry import CenterCrop, RandomCrop, RandomFlip, RandomRotation, Resize
from hpcbal.data.operations.mixing import CutMix, Cutout, MixingOperation, Mixup, RandomErasing
from hpcbal.data.operations.pixel_values import ColorJitter, Normalize, RandomBrightness, RandomContrast

_KINDS: tuple[type[OwnOperation], ...] = (
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
OPERATIONS: dict[str, Any] = {kind.name: kind for kind in _KINDS}

__all__ = [
    "OPERATIONS",
    "CenterCrop",
    "ColorJitter",
    "CutMix",
    "Cutout",
    "Decode",
    "ElementwiseOperation",
    "MixingOperation",
    "Mixup",
    "Normalize",
    "Operation",
    "OperationError",
    "RandomBrightness",
    "RandomContrast",
    "RandomCrop",
    "RandomErasing",
    "RandomFlip",
    "RandomRotation",
    "Resize",
]
