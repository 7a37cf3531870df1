"""Datasets of several named arrays and labels: as users declare them, of other libraries, or in memory."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hpcbal.data.dataset import Dataset, RawSample, UnusableSampleError, evenly, labels_in_one_place
from hpcbal.data.foreign import inherited
from hpcbal.data.items import Layout, arranged, label_of, layout_of, sample_of
from hpcbal.data.spec import UNNAMED, LabelSpec, SampleSpec
from hpcbal.errors import DataError
from hpcbal.user_code import is_ctrl_c, summary


def has_names(dataset: Dataset) -> bool:
    """Whether samples have several named arrays, or several named labels."""
    return isinstance(dataset.sample_spec, Mapping) or bool(dataset.label_spec.parts)


class WithNamedLabels:
    """A dataset whose `label_spec` is a mapping, with one spec for all labels of a sample.

    Attributes:
        label_spec: of records; see `LabelSpec`.
        num_classes: those of all labels together, which is the number of outputs of a network.

    Args:
        dataset: checked; `label_spec` and `num_classes` are mappings.
    """

    def __init__(self, dataset: Any) -> None:
        self._dataset = dataset
        classes: Mapping[str, int] = dataset.num_classes
        self.label_spec = LabelSpec.of_named(
            {name: replace(spec, num_classes=int(classes[name])) for name, spec in dataset.label_spec.items()}
        )
        self.num_classes = sum(map(int, classes.values()))

    def __getattr__(self, name: str) -> Any:
        """Everything else is as in the dataset."""
        if name.startswith("__") or name == "_dataset":  # while a copy is made, there is no dataset yet
            raise AttributeError(name)
        return getattr(self._dataset, name)

    def __len__(self) -> int:
        return len(self._dataset)

    def read(self, sample_id: int) -> Any:
        """A sample of the dataset, and its labels by name."""
        return self._dataset.read(sample_id)


class NamedArrays:
    """Arrays with a row for each sample, as `fit` of Keras takes them: `({name: array}, {name: labels})`.

    Labels that are whole numbers in one axis are classes; others are numbers. One array, or one column of
    labels, may come without a name.

    Attributes: as `Dataset` describes them.

    Args:
        samples, labels: arrays, or what NumPy makes arrays of, by name.
        shown: what names the dataset, for messages.

    Raises:
        DataError: if one is no array of numbers, or their lengths differ.
    """

    def __init__(self, samples: Any, labels: Any, shown: str) -> None:
        self._samples, self._labels = _arrays(samples, shown), _arrays(labels, shown)
        lengths = {name: len(each) for given in (self._samples, self._labels) for name, each in given.items()}
        if len({*lengths.values()}) > 1:
            found = ", ".join(f"{name or 'unnamed'}: {length}" for name, length in lengths.items())
            raise DataError(f"{shown}: arrays have different numbers of samples ({found}), allowed: as many")
        self._length = next(iter(lengths.values()))
        self._has_names = isinstance(samples, Mapping), isinstance(labels, Mapping)
        specs = {name: SampleSpec.of(each.shape[1:], each.dtype.name) for name, each in self._samples.items()}
        of_labels = {name: _label_spec(each) for name, each in self._labels.items()}
        classes = {name: _num_classes(each) for name, each in self._labels.items()}
        self.sample_spec: Any = self._with_or_without(0, specs)
        self.label_spec: Any = self._with_or_without(1, of_labels)
        self.num_classes: Any = self._with_or_without(1, classes)

    def _with_or_without(self, place: int, by_name: Mapping[str, Any]) -> Any:
        return by_name if self._has_names[place] else next(iter(by_name.values()))

    def __len__(self) -> int:
        return self._length

    def read(self, sample_id: int) -> tuple[Any, Any]:
        """The row of each array, and of each label."""
        sample, label = (
            {name: each[sample_id] for name, each in given.items()} for given in (self._samples, self._labels)
        )
        return self._with_or_without(0, sample), self._with_or_without(1, label)

    def describe(self, sample_id: int) -> str:
        """Return the number of the row."""
        return f"row {sample_id}"


def is_named_pair(given: Any) -> bool:
    """Whether this is a pair of samples and labels in which one or both are arrays by name."""
    return isinstance(given, tuple) and len(given) == 2 and any(isinstance(each, Mapping) for each in given)


def _arrays(given: Any, shown: str) -> dict[str, NDArray[Any]]:
    found = {}
    for name, value in given.items() if isinstance(given, Mapping) else [("", given)]:
        try:
            array = value if isinstance(value, np.ma.MaskedArray) else np.asarray(value)
        except (TypeError, ValueError):
            array = np.zeros((), object)
        if array.dtype.kind not in "biuf" or not array.ndim:
            raise DataError(
                f"{shown}: {name or 'the array'} is no array of numbers with a row for each sample; samples "
                "that differ in shape need a dataset of your own"
            )
        found[name] = array
    return found


def _label_spec(labels: NDArray[Any]) -> LabelSpec:
    is_class = labels.ndim == 1 and labels.dtype.kind in "iu"
    return LabelSpec() if is_class else LabelSpec(labels.shape[1:], labels.dtype.name)


def _num_classes(labels: NDArray[Any]) -> int:
    if labels.ndim == 1 and labels.dtype.kind in "iu":
        return int(labels_in_one_place(labels).max(initial=0)) + 1
    return int(np.prod(labels.shape[1:], dtype=np.int64))


_TRIED = 8
"""Items at most that are read to find out shapes and types."""


class NamedItems:
    """Items `(sample, label)` of a dataset of map style, where one or both are mappings by name.

    Arrays of one shape are images if they have three axes and the first is that of channels, as from
    torchvision's ToTensor. Labels that are one whole number are classes; their number is in the object's
    attribute `num_classes`: a number, or one for each label that is a class.

    Attributes: as `Dataset` describes them.

    Args:
        items: has `len(items)` and `items[number]`.
        shown: what names the dataset, for messages.

    Raises:
        DataError: if no item can be used, or numbers of classes are missing.
    """

    def __init__(self, items: Any, shown: str) -> None:
        self._items = items
        samples, labels = _first(items, shown)
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

    def _spec(self, name: str, values: list[Any], shown: str) -> SampleSpec | None:
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
        sample, label = self._items[sample_id]
        arrays: dict[str, RawSample] = {
            name: arranged(sample_of(value), self._layouts.get(name, "keep"))
            for name, value in _by_name(sample).items()
        }
        labels: dict[str, NDArray[Any]] = {name: label_of(value) for name, value in _by_name(label).items()}
        return self._one_or_named(0, arrays), self._one_or_named(1, labels)

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


def _first(items: Any, shown: str) -> tuple[list[Any], list[Any]]:
    """Samples and labels of a few items."""
    found, why = [], ""
    for number in evenly(len(items), _TRIED):
        try:
            sample, label = items[number]
        except Exception as error:  # a user's code may raise anything
            if is_ctrl_c(error):
                raise
            why = why or summary(error)
            continue
        found.append((sample, label))
    if not found:
        raise DataError(f"{shown}: none of the items that were tried can be read, the first: {why}")
    samples, labels = zip(*found, strict=True)
    return list(samples), list(labels)


def _by_name(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {UNNAMED: value}
