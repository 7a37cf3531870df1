"""Preprocessing operations as written in the file: a list of single-key maps."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import (
    AfterValidator,
    BeforeValidator,
    ConfigDict,
    Field,
    PlainSerializer,
    ValidatorFunctionWrapHandler,
    WrapValidator,
    model_validator,
)

from hpcbal.config.schema.section import (
    ARGS_ALLOWED,
    IMPORT_ALLOWED,
    IMPORT_PATTERN,
    LEAST,
    MOST,
    Section,
    is_import_path,
    key,
    wrong,
)
from hpcbal.config.source.meant import did_you_mean

OF = "of"
"""The key beside an operation that names the arrays it is for."""
OF_ALLOWED = "the name of an array of the samples, or a list of such names"

_PIXELS = "a whole number of pixels, 1 or more"
MOST_PIXELS = 65_535
_PER_CHANNEL = "a number, or a list with a number per channel"


@dataclass(frozen=True, slots=True)
class OperationConfig:
    """One operation with all its arguments, defaults included.

    Attributes:
        name: of an operation that comes with hpcbal, or the import path of a user's.
        args: of a user's operation, those in the file.
        of: names of the arrays that it is for; empty for samples of one array.
    """

    name: str
    args: Mapping[str, Any] = field(default_factory=dict)
    of: tuple[str, ...] = ()


class DecodeArgs(Section):
    """Decode PNG or JPEG bytes to an image of uint8, (height, width, channels)."""

    mode: Literal["rgb", "gray"] = key("rgb", "Channels of the decoded image.", "rgb, gray")
    # Not in `repr`, so that the fingerprints of runs from before there was this key stay as they are.
    exact: bool = key(
        False, "Decode every pixel, also of images that shrink next; slower.", "true, false", repr=False
    )


class ResizeArgs(Section):
    """Resize to a fixed size."""

    height: int = key(..., "Height in pixels.", _PIXELS, ge=1, le=MOST_PIXELS)
    width: int = key(..., "Width in pixels.", _PIXELS, ge=1, le=MOST_PIXELS)


class RandomCropArgs(Section):
    """Cut out a random window while training, and the middle otherwise."""

    height: int = key(..., "Height in pixels.", _PIXELS, ge=1, le=MOST_PIXELS)
    width: int = key(..., "Width in pixels.", _PIXELS, ge=1, le=MOST_PIXELS)
    padding: int = key(
        0, "Zero pixels added on every side first.", "a whole number, 0 or more", ge=0, le=MOST_PIXELS
    )


class CenterCropArgs(Section):
    """Cut out the middle."""

    height: int = key(..., "Height in pixels.", _PIXELS, ge=1, le=MOST_PIXELS)
    width: int = key(..., "Width in pixels.", _PIXELS, ge=1, le=MOST_PIXELS)


class RandomFlipArgs(Section):
    """Mirror samples at random while training, each with probability 1/2."""

    horizontal: bool = key(True, "Mirror left and right.", "true, false")
    vertical: bool = key(False, "Mirror top and bottom.", "true, false")

    @model_validator(mode="after")
    def _check(self) -> RandomFlipArgs:
        if not (self.horizontal or self.vertical):
            raise wrong("", "got false for both of its keys, allowed: at least one true; or remove it")
        return self


class RandomRotationArgs(Section):
    """Rotate by a random angle while training."""

    degrees: float = key(..., "Largest angle, in both directions.", "0 < degrees <= 180", gt=0.0, le=180)


class RandomBrightnessArgs(Section):
    """Add a random number to all values while training."""

    factor: float = key(
        ..., "Largest number, in parts of the range, as in Keras.", "0 < factor <= 1", gt=0.0, le=1
    )


class RandomContrastArgs(Section):
    """Stretch values about each channel's mean by a random factor while training."""

    factor: float = key(
        ..., "Largest distance of the factor from 1, as in Keras.", "0 < factor <= 1", gt=0.0, le=1
    )


class ColorJitterArgs(Section):
    """Change brightness, contrast, saturation and hue at random while training, as in torchvision."""

    brightness: float = key(0.0, "Largest distance of the factor from 1.", "a number, 0 or more", ge=0.0)
    contrast: float = key(0.0, "Likewise, about the mean gray value.", "a number, 0 or more", ge=0.0)
    saturation: float = key(0.0, "Likewise, about each pixel's gray value.", "a number, 0 or more", ge=0.0)
    hue: float = key(
        0.0, "Largest part of the colour wheel, in both directions.", "0 <= hue <= 0.5", ge=0.0, le=0.5
    )

    @model_validator(mode="after")
    def _check(self) -> ColorJitterArgs:
        if not (self.brightness or self.contrast or self.saturation or self.hue):
            raise wrong("", "got 0 for all of its keys, allowed: at least one above 0; or remove it")
        return self


def _as_tuple(value: Any) -> Any:
    if isinstance(value, list | tuple):
        return tuple(value)
    return value


_Number = Annotated[float, Field(ge=-MOST, le=MOST)]
_Channels = Annotated[_Number | tuple[_Number, ...], BeforeValidator(_as_tuple)]


def _ascending(value: tuple[float, float]) -> tuple[float, float]:
    if value[0] > value[1]:
        raise ValueError("the first number is larger than the second")
    return value


_Positive = Annotated[float, Field(ge=LEAST, le=MOST)]
_Part = Annotated[float, Field(ge=LEAST, le=1)]
_Parts = Annotated[tuple[_Part, _Part], BeforeValidator(_as_tuple), AfterValidator(_ascending)]
_Ratios = Annotated[tuple[_Positive, _Positive], BeforeValidator(_as_tuple), AfterValidator(_ascending)]


class RandomErasingArgs(Section):
    """Cover a random rectangle while training, as in torchvision."""

    p: float = key(0.5, "Probability.", "0 < p <= 1", gt=0.0, le=1)
    scale: _Parts = key(
        (0.02, 0.33), "Least and largest part of the area.", "a list [least, largest], 0 < both <= 1"
    )
    ratio: _Ratios = key(
        (0.3, 3.3), "Least and largest height over width.", "a list [least, largest] of numbers above 0"
    )
    value: float = key(0.0, "What covers the rectangle.", "a number", ge=-MOST, le=MOST)


class CutoutArgs(Section):
    """Cover a square at a random place with zeros while training."""

    size: int = key(..., "Side of the square.", _PIXELS, ge=1, le=MOST_PIXELS)


class MixupArgs(Section):
    """Make each training sample the weighted mean of two."""

    alpha: float = key(0.2, "Of the beta distribution of weights.", "a number above 0", gt=0.0)
    p: float = key(1.0, "Probability.", "0 < p <= 1", gt=0.0, le=1)


class CutMixArgs(Section):
    """Replace a rectangle of each training image by that of another one."""

    alpha: float = key(1.0, "Of the beta distribution of areas.", "a number above 0", gt=0.0)
    p: float = key(1.0, "Probability.", "0 < p <= 1", gt=0.0, le=1)


class NormalizeArgs(Section):
    """(sample * scale - mean) / std, float32."""

    mean: _Channels = key(0.0, "Subtracted after scaling.", _PER_CHANNEL)
    std: _Channels = key(1.0, "Divisor, applied after the mean.", _PER_CHANNEL + ", none of them 0 or less")
    scale: float = key(1.0 / 255.0, "Multiplier; 1/255 maps bytes to 0..1.", "a number above 0", gt=0.0)

    @model_validator(mode="after")
    def _check(self) -> NormalizeArgs:
        stds = self.std if isinstance(self.std, tuple) else (self.std,)
        means = self.mean if isinstance(self.mean, tuple) else (self.mean,)
        if not stds or not means or min(stds) < LEAST:
            raise wrong("std", f"got {self.std}, allowed: {_PER_CHANNEL}, each above 0")
        if len(stds) > 1 and len(means) > 1 and len(stds) != len(means):
            message = f"got {len(stds)} numbers but mean has {len(means)}, allowed: as many as channels"
            raise wrong("std", message)
        return self


class OperationItem(Section):
    """One entry of `preprocessing`: exactly one of these keys, or the import path of an own operation.

    Beside it, `of` may name the arrays that the operation is for.
    """

    model_config = ConfigDict(
        json_schema_extra={"patternProperties": {IMPORT_PATTERN: {"type": ["object", "null"]}}}
    )
    also_allowed = f", or {IMPORT_ALLOWED}"

    decode: DecodeArgs = key(None, "Decode PNG or JPEG bytes.", "arguments of decode")
    resize: ResizeArgs = key(None, "Resize to a fixed size.", "arguments of resize")
    random_crop: RandomCropArgs = key(None, "Random window.", "arguments of random_crop")
    center_crop: CenterCropArgs = key(None, "Middle window.", "arguments of center_crop")
    random_flip: RandomFlipArgs = key(None, "Random mirroring.", "arguments of random_flip")
    random_rotation: RandomRotationArgs = key(None, "Random rotation.", "arguments of random_rotation")
    random_brightness: RandomBrightnessArgs = key(
        None, "Random brightness.", "arguments of random_brightness"
    )
    random_contrast: RandomContrastArgs = key(None, "Random contrast.", "arguments of random_contrast")
    color_jitter: ColorJitterArgs = key(None, "Random colours.", "arguments of color_jitter")
    random_erasing: RandomErasingArgs = key(None, "Random rectangle.", "arguments of random_erasing")
    cutout: CutoutArgs = key(None, "Random square.", "arguments of cutout")
    mixup: MixupArgs = key(None, "Mean of two samples.", "arguments of mixup")
    cutmix: CutMixArgs = key(None, "Part of another image.", "arguments of cutmix")
    normalize: NormalizeArgs = key(None, "Scale and shift.", "arguments of normalize")
    of: str | tuple[str, ...] = key((), "Arrays of the samples that it is for.", OF_ALLOWED)

    @property
    def operations(self) -> list[str]:
        """The names of the operations in the entry."""
        return sorted(self.model_fields_set - {OF})

    @model_validator(mode="after")
    def _exactly_one(self) -> OperationItem:
        if len(self.operations) != 1:
            given = ", ".join(self.operations) or "none"
            message = f"got {given}, allowed: exactly one operation per entry ({', '.join(OPERATIONS)})"
            raise wrong("", message)
        return self


OPERATIONS: tuple[str, ...] = tuple(name for name in OperationItem.model_fields if name != OF)


def _to_operation(item: OperationItem) -> OperationConfig:
    (name,) = item.operations
    return OperationConfig(name, getattr(item, name).model_dump())


def _operation(value: Any, to_item: ValidatorFunctionWrapHandler) -> OperationConfig:
    """A user's operation, or one that comes with hpcbal."""
    if isinstance(value, OperationConfig):
        value = _serialize(value)
    elif isinstance(value, str):
        value = {value: None}
    of: tuple[str, ...] = ()
    if isinstance(value, Mapping) and OF in value:
        of = _names_of(value[OF])
        value = {name: args for name, args in value.items() if name != OF}
    if isinstance(value, Mapping) and any(isinstance(name, str) and is_import_path(name) for name in value):
        return replace(_custom(value), of=of)
    return replace(_to_operation(to_item(value)), of=of)


def _names_of(value: Any) -> tuple[str, ...]:
    """The names in `of`: one, or a list of them."""
    names = value if isinstance(value, list | tuple) else [value]
    if not all(isinstance(name, str) and name for name in names) or len({*names}) < len(names):
        raise wrong(OF, f"got {value!r:.100}, allowed: {OF_ALLOWED}")
    return tuple(names)


def _custom(value: Mapping[Any, Any]) -> OperationConfig:
    if len(value) != 1:
        given = ", ".join(map(str, value))
        raise wrong("", f"got {given}, allowed: exactly one operation per entry")
    ((name, args),) = value.items()
    if args is not None and not isinstance(args, Mapping):
        raise wrong("", f"got {args!r:.100} for {name}, allowed: {ARGS_ALLOWED}")
    return OperationConfig(name, dict(args or {}))


MIXING = ("mixup", "cutmix")
"""Operations on pairs of samples."""
_BOTH = " and ".join(MIXING)
_ELEMENTWISE = ("normalize",)


def in_order(operations: tuple[OperationConfig, ...]) -> tuple[OperationConfig, ...]:
    """Check that only elementwise operations follow those on pairs of samples, which are there once each.

    Raises:
        PydanticCustomError: if not, at the first operation that is wrong.
    """
    mixing: list[str] = []
    may_mix = True
    for index, operation in enumerate(operations):
        name = operation.name
        if name in MIXING and operation.of:
            raise wrong(f"{index}.{OF}", f"got {', '.join(operation.of)}, allowed with {name}: leave it out")
        if name in MIXING and name not in mixing and may_mix:
            mixing.append(name)
        elif mixing:
            if name not in _ELEMENTWISE:
                raise wrong(
                    str(index),
                    f"{name} comes after {mixing[-1]}, allowed there: {', '.join(_ELEMENTWISE)}, and {_BOTH} "
                    "once each, side by side; change the order",
                )
            may_mix = False
    return operations


NOT_IN_AUGMENT = ("decode", *MIXING, *_ELEMENTWISE)
"""Operations that `augment` of a DNN may not have: they change what samples or labels are."""
_IN_AUGMENT = tuple(each for each in OPERATIONS if each not in NOT_IN_AUGMENT)
_ALLOWED_IN_AUGMENT = f"allowed in augment: {', '.join(_IN_AUGMENT)}, or {IMPORT_ALLOWED}"


def _of_augment(operation: OperationConfig) -> OperationConfig:
    """Check that an operation of `augment` can leave shape and type of samples, and labels, as they are.

    Raises:
        PydanticCustomError: if it cannot, whatever the data; `hpcbal.data.augmentation` checks the others.
    """
    name = operation.name
    if name in NOT_IN_AUGMENT:
        raise wrong("", f"got {name}, {_ALLOWED_IN_AUGMENT}; put {name} into preprocessing")
    return operation


def _known_in_augment(value: Any) -> Any:
    """Check the name of an operation of `augment` before `preprocessing` says which ones it may have.

    Raises:
        PydanticCustomError: if it is unknown.
    """
    names = [value] if isinstance(value, str) else value if isinstance(value, Mapping) else ()
    for name in names:
        if isinstance(name, str) and name not in (*OPERATIONS, OF) and not is_import_path(name):
            raise wrong("", f"got {name!r}{did_you_mean(name, _IN_AUGMENT)}, {_ALLOWED_IN_AUGMENT}")
    return value


def _serialize(operation: OperationConfig) -> dict[str, Any]:
    entry: dict[str, Any] = {operation.name: dict(operation.args)}
    return entry | ({OF: list(operation.of)} if operation.of else {})


if TYPE_CHECKING:
    Operation = OperationConfig
else:
    Operation = Annotated[
        OperationItem,
        WrapValidator(_operation),
        PlainSerializer(_serialize),
    ]

AugmentOperation = Annotated[Operation, AfterValidator(_of_augment), BeforeValidator(_known_in_augment)]
"""One that acts on the training samples of one DNN, as they come from `preprocessing`."""
