"""Preprocessing operations by the names that the config uses."""

from __future__ import annotations

from hpcbal.data.operations.base import ElementwiseOperation, NamedOperation, Operation, OperationError
from hpcbal.data.operations.brightness import RandomBrightness, RandomContrast
from hpcbal.data.operations.color_jitter import ColorJitter
from hpcbal.data.operations.crop import CenterCrop, RandomCrop
from hpcbal.data.operations.decode import Decode
from hpcbal.data.operations.erasing import Cutout, RandomErasing
from hpcbal.data.operations.flip import RandomFlip
from hpcbal.data.operations.mixing import CutMix, MixingOperation, Mixup
from hpcbal.data.operations.normalize import Normalize
from hpcbal.data.operations.resize import Resize
from hpcbal.data.operations.rotation import RandomRotation

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
