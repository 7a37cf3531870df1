"""How one item of another library's dataset is read: which part is the sample, and numbers as an array.

No library is imported to find out: tensors and images are known by what they can do.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from hpcbal.data.dataset import RawSample, UnusableSampleError, kind_of, unmasked
from hpcbal.user_code import summary

Key = str | int
Layout = Literal["chw", "hw", "keep"]
LAYOUTS: tuple[Layout, ...] = get_args(Layout)

SAMPLE_COLUMNS = ("image", "img", "pixel_values", "x", "features", "inputs")
LABEL_COLUMNS = ("label", "labels", "y", "target", "targets")

IMAGE_MODES = ("L", "LA", "RGB", "RGBA", "F", "I", "I;16")
"""Modes of Pillow's images whose numbers are amounts of light, and not numbers of colours in a palette."""

CHANNELS = (1, 3, 4)
"""Lengths by which an axis is known as that of channels."""


@dataclass(frozen=True, slots=True)
class Columns:
    """Where an item has its sample and its label: keys of a dict, or places in a tuple.

    Attributes:
        sample: several are stacked along a new last axis, in the type of those with a fraction, if any.
        label: one.
    """

    sample: Key | tuple[Key, ...]
    label: Key

    @classmethod
    def of(cls, item: Any, sample: Key | Sequence[Key] | None, label: Key | None) -> Columns:
        """Choose the columns of a dataset by its first item.

        Args:
            sample, label: as the user names them. None: a tuple has both in this order; a dict has exactly
                one column with a usual name, or two columns, one with the usual name of a label.

        Raises:
            UnusableSampleError: if the item does not show which is which, or the label is among several
                samples.
        """
        chosen = sample if sample is None or isinstance(sample, str | int) else tuple(sample)
        if isinstance(item, Mapping):
            label = _usual(item, LABEL_COLUMNS) if label is None else label
            if chosen is None:
                rest = [key for key in item if key != label]
                chosen = rest[0] if len(rest) == 1 and label is not None else _usual(item, SAMPLE_COLUMNS)
            if chosen is None or label is None:
                lacking = "sample" if chosen is None else "label"
                raise UnusableSampleError(
                    f"{form_of(item)} does not show which is the {lacking}; set {lacking} of "
                    "hpcbal.data:map_style to its name"
                )
        elif isinstance(item, tuple | list) and (len(item) == 2 or not (chosen is None or label is None)):
            chosen = 0 if chosen is None else chosen
            label = 1 if label is None else label
        else:
            raise UnusableSampleError(
                f"{form_of(item)}, allowed: two values (the sample and its label), or a dict with both"
            )
        if isinstance(chosen, tuple) and label in chosen:
            raise UnusableSampleError(
                f"sample lists {label!r}, which is the label, so networks would get what they shall predict; "
                "leave it out of sample"
            )
        columns = cls(chosen, label)
        columns.parts(item)
        return columns

    def parts(self, item: Any) -> tuple[Any, Any]:
        """Return the sample and the label of an item, as they are.

        Raises:
            UnusableSampleError: if it lacks one of them.
        """
        return self.sample_part(item), _part(item, self.label)

    def sample_part(self, item: Any) -> Any:
        """Return the sample of an item, which may lack the label.

        Raises:
            UnusableSampleError: if it lacks the sample.
        """
        if isinstance(self.sample, tuple):
            return stacked([numbers(_part(item, key)) for key in self.sample])
        return _part(item, self.sample)


def stacked(columns: Sequence[NDArray[Any]]) -> NDArray[Any]:
    """Return columns along a new last axis, in the type of those with a fraction, if any.

    Raises:
        UnusableSampleError: if their shapes differ.
    """
    if len({column.shape for column in columns}) != 1:
        shapes = ", ".join(str(column.shape) for column in columns)
        raise UnusableSampleError(f"its columns have the shapes {shapes}, allowed: one shape")
    types = [column.dtype for column in columns]
    fractional = [each for each in types if each.kind == "f"]
    return np.stack(columns, axis=-1).astype(np.result_type(*(fractional or types)), copy=False)


def _usual(item: Mapping[Any, Any], names: Sequence[str]) -> str | None:
    found = [name for name in names if name in item]
    return found[0] if len(found) == 1 else None


def _part(item: Any, key: Key) -> Any:
    try:
        return item[key]
    except (KeyError, IndexError, TypeError):
        raise UnusableSampleError(f"{form_of(item)} has no {key!r}") from None


def form_of(item: Any) -> str:
    """Return how an item is put together, for people; the same text for items of the same structure."""
    if isinstance(item, Mapping):
        return f"a dict with {', '.join(map(str, item))}"
    return kind_of(item)


def is_image(value: Any) -> bool:
    """Whether it is an image of Pillow."""
    return hasattr(value, "getbands") and hasattr(value, "mode")


def numbers(value: Any) -> NDArray[Any]:
    """Return an array, tensor, image or (nested) list of numbers as an array, without a copy where possible.

    Python's numbers have no type; as in PyTorch, those with a fraction become float32, and others int64.
    NumPy has no bfloat16; such numbers become float32, which holds all of them.

    Raises:
        UnusableSampleError: if it is anything else, or values are masked.
    """
    value = unmasked(value)
    try:
        array = _array_of(value.detach() if hasattr(value, "detach") else value)
    except Exception as error:  # such as a list of lists of unequal length, or a tensor on a GPU
        raise UnusableSampleError(f"{kind_of(value)} is no array of numbers: {summary(error)}") from error
    if array.dtype.kind not in "biuf":
        raise UnusableSampleError(
            f"got {kind_of(value)}, allowed: an array, tensor, image or list of numbers"
        )
    if hasattr(value, "dtype") or is_image(value) or array.dtype.kind == "b":
        return array
    return array.astype(np.float32 if array.dtype.kind == "f" else np.int64)


def _array_of(value: Any) -> NDArray[Any]:
    try:
        array: NDArray[Any] = np.asarray(value)
    except TypeError:
        if str(getattr(value, "dtype", "")) != "torch.bfloat16":
            raise
        return np.asarray(value.float())
    is_short = array.dtype.kind == "V" and array.dtype.name == "bfloat16"  # of JAX and TensorFlow
    return array.astype(np.float32) if is_short else array


def sample_of(value: Any) -> RawSample:
    """Return a sample before its layout: bytes as they are, an image of Pillow as (height, width, channels).

    Raises:
        UnusableSampleError: if it is neither, nor numbers, or an image whose numbers are no amounts of light.
    """
    if isinstance(value, bytes | bytearray | memoryview):
        return bytes(value)
    if not is_image(value):
        return numbers(value)
    if value.mode not in IMAGE_MODES:
        raise UnusableSampleError(
            f"an image of mode {value.mode}, allowed: {', '.join(IMAGE_MODES)}; convert it, as "
            "image.convert('RGB') does"
        )
    array = numbers(value)
    return array[:, :, np.newaxis] if array.ndim == 2 else array


def label_of(value: Any) -> NDArray[Any]:
    """Return a label as an array: a class as int64 of shape (), also if it is a boolean or has shape (1,).

    Raises:
        UnusableSampleError: if it is no number, and no array of numbers.
    """
    array = numbers(value)
    if array.dtype.kind == "f" or array.shape not in ((), (1,)):
        return array
    return array.reshape(()).astype(np.int64)


def content_of(parts: Iterable[RawSample]) -> bytes:
    """Return content and shape of the parts of an item, to compare them or to digest them."""
    return b" ".join(map(_bytes_of, parts))


def _bytes_of(part: RawSample) -> bytes:
    if isinstance(part, bytes):
        return part
    return f"{part.shape} {part.dtype.str} ".encode() + part.tobytes()


def digest_of(facts: object, labels: NDArray[np.int64] | None, contents: Mapping[int, bytes]) -> str:
    """Return a fingerprint of a dataset by what is known of it.

    Args:
        facts: whose `repr` is the same for the same data.
        labels: the class of each item, if it is known.
        contents: of the items that were read, by number.
    """
    digest = hashlib.sha256(repr(facts).encode())
    if labels is not None:
        digest.update(labels.astype("<i8").tobytes())
    for number in sorted(contents):
        digest.update(f"{number} ".encode() + contents[number])
    return digest.hexdigest()


def unrepeatable(number: int) -> str:
    """Return why a dataset is refused whose item differs from read to read."""
    return (
        f"item {number} differs from read to read, so runs could not be repeated; take random transforms out "
        "of it, and list random_flip or a function of your own in preprocessing"
    )


def layout_of(shapes: Sequence[tuple[int, ...]]) -> Layout:
    """Decide by shapes alone whether arrays are images with their channels first.

    Arrays of three axes are images: the axis of channels is the first or the last one, with 1, 3 or 4
    channels. All other arrays stay as they are.

    Args:
        shapes: of at least one array; all have the same number of axes.

    Raises:
        UnusableSampleError: if both axes may be the one of channels, or neither.
    """
    if len(shapes[0]) != 3:
        return "keep"
    is_first, is_last = (len(ends) == 1 and ends <= set(CHANNELS) for ends in _first_and_last(shapes))
    if is_first == is_last:
        which = "both its first and its last axis" if is_first else "neither its first nor its last axis"
        raise UnusableSampleError(
            f"an array of shape {shapes[0]} has no one meaning: {which} may be channels (1, 3 or 4); set "
            "layout of hpcbal.data:map_style to chw (channels first) or keep (as it is)"
        )
    return "chw" if is_first else "keep"


def _first_and_last(shapes: Sequence[tuple[int, ...]]) -> tuple[set[int], set[int]]:
    return {shape[0] for shape in shapes}, {shape[-1] for shape in shapes}


def arranged(sample: RawSample, layout: Layout) -> RawSample:
    """Return a sample as preprocessing expects it, images as (height, width, channels); a view.

    Raises:
        UnusableSampleError: if its number of axes is not that of the layout.
    """
    if layout == "keep" or not isinstance(sample, np.ndarray):
        return sample
    if sample.ndim != len(layout):
        raise UnusableSampleError(f"got {kind_of(sample)}, allowed with layout {layout}: {len(layout)} axes")
    return np.moveaxis(sample, 0, -1) if layout == "chw" else sample[:, :, np.newaxis]


@dataclass(frozen=True, slots=True)
class Reading:
    """How an item becomes a sample.

    Attributes:
        columns: where it is in the item.
        layout: of its axes.
    """

    columns: Columns
    layout: Layout
