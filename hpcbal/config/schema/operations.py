"""Preprocessing operations as written in the file: a list of single-key maps."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import AfterValidator, BeforeValidator, Field, PlainSerializer, model_validator
from pydantic_core import PydanticCustomError

from hpcbal.config.schema.section import CUSTOM_ERROR, LEAST, MOST, Section, key

_PIXELS = "a whole number of pixels, 1 or more"
MOST_PIXELS = 65_535
_PER_CHANNEL = "a number, or a list with a number per channel"


@dataclass(frozen=True, slots=True)
class OperationConfig:
    """One operation with all its arguments, defaults included."""

    name: str
    args: Mapping[str, Any] = field(default_factory=dict)


class Decode(Section):
    """Decode PNG or JPEG bytes to an image of uint8, (height, width, channels)."""

    mode: Literal["rgb", "gray"] = key("rgb", "Channels of the decoded image.", "rgb, gray")


class Resize(Section):
    """Resize to a fixed size."""

    height: int = key(..., "Height in pixels.", _PIXELS, ge=1, le=MOST_PIXELS)
    width: int = key(..., "Width in pixels.", _PIXELS, ge=1, le=MOST_PIXELS)


class RandomCrop(Section):
    """Cut out a random window while training, and the middle otherwise."""

    height: int = key(..., "Height in pixels.", _PIXELS, ge=1, le=MOST_PIXELS)
    width: int = key(..., "Width in pixels.", _PIXELS, ge=1, le=MOST_PIXELS)
    padding: int = key(
        0, "Zero pixels added on every side first.", "a whole number, 0 or more", ge=0, le=MOST_PIXELS
    )


class CenterCrop(Section):
    """Cut out the middle."""

    height: int = key(..., "Height in pixels.", _PIXELS, ge=1, le=MOST_PIXELS)
    width: int = key(..., "Width in pixels.", _PIXELS, ge=1, le=MOST_PIXELS)


class RandomFlip(Section):
    """Mirror samples at random while training, each with probability 1/2."""

    horizontal: bool = key(True, "Mirror left and right.", "true, false")
    vertical: bool = key(False, "Mirror top and bottom.", "true, false")


class RandomRotation(Section):
    """Rotate by a random angle while training."""

    degrees: float = key(..., "Largest angle, in both directions.", "0 < degrees <= 180", gt=0.0, le=180)


def _as_tuple(value: Any) -> Any:
    if isinstance(value, list | tuple):
        return tuple(value)
    return value


_Number = Annotated[float, Field(ge=-MOST, le=MOST)]
_Channels = Annotated[_Number | tuple[_Number, ...], BeforeValidator(_as_tuple)]


class Normalize(Section):
    """(sample * scale - mean) / std, float32."""

    mean: _Channels = key(0.0, "Subtracted after scaling.", _PER_CHANNEL)
    std: _Channels = key(1.0, "Divisor, applied after the mean.", _PER_CHANNEL + ", none of them 0 or less")
    scale: float = key(1.0 / 255.0, "Multiplier; 1/255 maps bytes to 0..1.", "a number above 0", gt=0.0)

    @model_validator(mode="after")
    def _check(self) -> Normalize:
        stds = self.std if isinstance(self.std, tuple) else (self.std,)
        means = self.mean if isinstance(self.mean, tuple) else (self.mean,)
        if not stds or not means or min(stds) < LEAST:
            raise PydanticCustomError(
                CUSTOM_ERROR,
                "{message}",
                {"key": "std", "message": f"got {self.std}, allowed: {_PER_CHANNEL}, each above 0"},
            )
        if len(stds) > 1 and len(means) > 1 and len(stds) != len(means):
            message = f"got {len(stds)} numbers but mean has {len(means)}, allowed: as many as channels"
            raise PydanticCustomError(CUSTOM_ERROR, "{message}", {"key": "std", "message": message})
        return self


class OperationItem(Section):
    """One entry of `preprocessing`: exactly one of these keys."""

    decode: Decode = key(None, "Decode PNG or JPEG bytes.", "arguments of decode")
    resize: Resize = key(None, "Resize to a fixed size.", "arguments of resize")
    random_crop: RandomCrop = key(None, "Random window.", "arguments of random_crop")
    center_crop: CenterCrop = key(None, "Middle window.", "arguments of center_crop")
    random_flip: RandomFlip = key(None, "Random mirroring.", "arguments of random_flip")
    random_rotation: RandomRotation = key(None, "Random rotation.", "arguments of random_rotation")
    normalize: Normalize = key(None, "Scale and shift.", "arguments of normalize")

    @model_validator(mode="before")
    @classmethod
    def _name_alone(cls, value: Any) -> Any:
        """`- random_flip` without arguments is the same as `- random_flip: {}`."""
        return {value: {}} if isinstance(value, str) else value

    @model_validator(mode="after")
    def _exactly_one(self) -> OperationItem:
        if len(self.model_fields_set) != 1:
            given = ", ".join(sorted(self.model_fields_set)) or "none"
            message = f"got {given}, allowed: exactly one operation per entry ({', '.join(OPERATIONS)})"
            raise PydanticCustomError(CUSTOM_ERROR, "{message}", {"message": message, "key": ""})
        return self


OPERATIONS: tuple[str, ...] = tuple(OperationItem.model_fields)


def _to_operation(item: OperationItem) -> OperationConfig:
    (name,) = item.model_fields_set
    return OperationConfig(name, getattr(item, name).model_dump())


def _from_operation(value: Any) -> Any:
    return {value.name: dict(value.args)} if isinstance(value, OperationConfig) else value


def _serialize(operation: OperationConfig) -> dict[str, Any]:
    return {operation.name: dict(operation.args)}


if TYPE_CHECKING:
    Operation = OperationConfig
else:
    Operation = Annotated[
        OperationItem,
        BeforeValidator(_from_operation),
        AfterValidator(_to_operation),
        PlainSerializer(_serialize),
    ]
