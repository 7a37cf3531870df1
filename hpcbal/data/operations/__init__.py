"""Preprocessing operations by the names that the config uses."""

from __future__ import annotations

from hpcbal.data.operations.base import ElementwiseOperation, NamedOperation, Operation, OperationError
from hpcbal.data.operations.decode import Decode
from hpcbal.data.operations.geometry import CenterCrop, RandomCrop, RandomFlip, RandomRotation, Resize
from hpcbal.data.operations.mixing import CutMix, Cutout, MixingOperation, Mixup, RandomErasing
from hpcbal.data.operations.pixel_values import ColorJitter, Normalize, RandomBrightness, RandomContrast

OPERATIONS: dict[str, type[NamedOperation | MixingOperation]] = {
    operation.name: operation
    for operation in (
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
