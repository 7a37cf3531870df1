"""Datasets of other libraries whose items hold several arrays or labels by name, such as those of PyTorch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hpcbal.data.dataset import RawSample, UnusableSampleError, evenly
from hpcbal.data.foreign import inherited, known_class_names, known_labels
from hpcbal.data.held_samples import num_bytes_of
from hpcbal.data.items import (
    Layout,
    arranged,
    content_of,
    digest_of,
    label_of,
    layout_of,
    sample_of,
    unrepeatable,
)
from hpcbal.data.spec import UNNAMED, LabelSpec, SampleSpec
from hpcbal.errors import DataError
from hpcbal.user_code import is_ctrl_c, summary

_TRIED, _TRIED_BYTES, _TRIED_TWICE = 64, 64 * 2**20, 8
"""Items and bytes at most that are read to find out shapes and types, and items that are read again."""


class NamedItems:
    """Items `(sample, label)` of a dataset of map style, where one or both are mappings by name.

    Arrays of one shape are images if they have three axes and the first is that of channels, as from
    torchvision's ToTensor. Labels that are one whole number are classes; their number is in the object's
    attribute `num_classes`: a number, or one for each label that is a class.

    Attributes: as `Dataset` describes them; `validation_ids`, `sample_weights` and `fingerprint` are those of
    the items, if they have any. Without a fingerprint it is a digest of their number, of labels that are
    known, and of the items that were read.

    Args:
        items: has `len(items)` and `items[number]`.
        shown: what names the dataset, for messages.

    Raises:
        DataError: if no item can be used, items differ from read to read, or numbers of classes are missing.
    """

    def __init__(self, items: Any, shown: str) -> None:
        self._items = items
        tried = _first(items, shown)
        samples, labels = zip(*tried.values(), strict=True)
        self._is_named = isinstance(samples[0], Mapping), isinstance(labels[0], Mapping)
        self._layouts: dict[str, Layout] = {}
        specs: dict[str, SampleSpec | None] = {}
        for name in _by_name(samples[0]):
            specs[name] = self._spec(name, [_by_name(sample)[name] for sample in samples], shown)
        of_labels, classes = {}, {}
        known = inherited(items, "num_classes")
        for name, value in _by_name(labels[0]).items():
            array = label_of(value)
            is_class = array.shape == () and array.dtype.kind == "i"
            of_labels[name] = LabelSpec() if is_class else LabelSpec(array.shape, array.dtype.name)
            number = known.get(name) if isinstance(known, Mapping) else known
            if number is None and not name:
                number = len(known_class_names(items, 1) or ()) or None
            if is_class and number is None:
                which = f"the label {name}" if name else "the label"
                raise DataError(
                    f"{shown}: the dataset does not say how many classes {which} has, allowed: an attribute "
                    f"num_classes, {'a mapping from labels to numbers' if name else 'a whole number'}"
                )
            classes[name] = number if is_class else int(np.prod(array.shape, dtype=np.int64))
        self.sample_spec: Any = self._one_or_named(0, specs)
        self.label_spec: Any = self._one_or_named(1, of_labels)
        self.num_classes: Any = self._one_or_named(1, classes)
        contents = {number: self._content(*item) for number, item in tried.items()}
        for number in [*tried][:_TRIED_TWICE]:  # resumed runs and other ranks would see other data
            if self._content(*items[number]) != contents[number]:
                raise DataError(f"{shown}: {unrepeatable(number)}")
        self.validation_ids: Any = getattr(items, "validation_ids", None)
        self.sample_weights: Any = getattr(items, "sample_weights", None)
        self.labels: NDArray[np.int64] | None = None
        self.class_names: tuple[str, ...] | None = None
        if isinstance(self.label_spec, LabelSpec) and self.label_spec.is_class:
            self.class_names = known_class_names(items, 1)
            found = known_labels(items, 1)
            if found is not None and all(found[number] == label for number, (_, label) in tried.items()):
                self.labels = found
        own = getattr(items, "fingerprint", None)
        facts = (len(items), self.sample_spec, self.label_spec, self.num_classes, self.class_names)
        self.fingerprint = own if isinstance(own, str) and own else digest_of(facts, self.labels, contents)

    def _spec(self, name: str, values: Sequence[Any], shown: str) -> SampleSpec | None:
        arrays = [sample_of(value) for value in values]
        if any(isinstance(array, bytes) for array in arrays):
            return None
        shapes = [array.shape for array in arrays if isinstance(array, np.ndarray)]
        try:
            self._layouts[name] = layout_of(shapes)
        except UnusableSampleError:  # no image: it stays as it is
            self._layouts[name] = "keep"
        first = arranged(arrays[0], self._layouts[name])
        assert isinstance(first, np.ndarray)
        if len({*shapes}) > 1:
            raise DataError(
                f"{shown}: {name or 'samples'}: got arrays of the shapes {shapes[0]} and {shapes[-1]}, "
                "allowed for samples of several named arrays: one shape; pad or resize them in the dataset"
            )
        return SampleSpec.of(first.shape, first.dtype.name)

    def _one_or_named(self, place: int, by_name: Mapping[str, Any]) -> Any:
        return by_name if self._is_named[place] else by_name[UNNAMED]

    def __len__(self) -> int:
        return len(self._items)

    def read(self, sample_id: int) -> tuple[Any, Any]:
        """The arrays of an item, images as (height, width, channels), and its labels."""
        arrays, labels = self._converted(*self._items[sample_id])
        return self._one_or_named(0, arrays), self._one_or_named(1, labels)

    def _converted(self, sample: Any, label: Any) -> tuple[dict[str, RawSample], dict[str, NDArray[Any]]]:
        arrays: dict[str, RawSample] = {
            name: arranged(sample_of(value), self._layouts.get(name, "keep"))
            for name, value in _by_name(sample).items()
        }
        return arrays, {name: label_of(value) for name, value in _by_name(label).items()}

    def _content(self, sample: Any, label: Any) -> bytes:
        return content_of([each for part in self._converted(sample, label) for each in part.values()])

    def describe(self, sample_id: int) -> str:
        """Return the number of the item."""
        return f"item {sample_id}"


def has_named_items(items: Any) -> bool:
    """Whether the first item is a pair in which a sample or a label is a mapping by name."""
    if isinstance(items, tuple | list | Mapping) or not hasattr(items, "__getitem__"):
        return False
    try:
        item = items[0]
    except Exception as error:  # a user's code may raise anything; it does so again when it is opened
        if is_ctrl_c(error):
            raise
        return False
    is_pair = isinstance(item, tuple | list) and len(item) == 2
    return is_pair and any(isinstance(part, Mapping) for part in item)


def _first(items: Any, shown: str) -> dict[int, tuple[Any, Any]]:
    """Samples and labels of some items, by number."""
    found: dict[int, tuple[Any, Any]] = {}
    why, num_bytes = "", 0
    for number in evenly(len(items), _TRIED):
        try:
            sample, label = items[number]
            num_bytes += sum(num_bytes_of(sample_of(each)) for each in _by_name(sample).values())
        except Exception as error:  # a user's code may raise anything
            if is_ctrl_c(error):
                raise
            why = why or summary(error)
            continue
        found[number] = (sample, label)
        if num_bytes >= _TRIED_BYTES:
            break
    if not found:
        raise DataError(f"{shown}: none of the items that were tried can be read, the first: {why}")
    return found


def _by_name(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {UNNAMED: value}
