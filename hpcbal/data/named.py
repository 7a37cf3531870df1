"""Datasets of several named arrays and labels: as users declare them, or of arrays in memory."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hpcbal.data.dataset import Dataset, evenly, labels_as_array
from hpcbal.data.items import content_of, digest_of
from hpcbal.data.spec import LabelSpec, SampleSpec
from hpcbal.errors import DataError

_TRIED = 64
"""Rows at most that enter the fingerprint of arrays."""


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

    Attributes: as `Dataset` describes them; `fingerprint` is a digest of shapes, types and some rows.

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
        self.labels: NDArray[np.int64] | None = None
        if isinstance(self.label_spec, LabelSpec) and self.label_spec.is_class:
            self.labels = labels_as_array(self._labels[""]).astype(np.int64)
        facts = (self._length, self.sample_spec, self.label_spec, self.num_classes)
        tried = evenly(self._length, _TRIED)
        self.fingerprint = digest_of(facts, self.labels, {n: content_of(self._row(n)) for n in tried})

    def _row(self, number: int) -> list[NDArray[Any]]:
        both = (*self._samples.values(), *self._labels.values())
        return [np.asarray(each[number]) for each in both]

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
        return int(labels_as_array(labels).max(initial=0)) + 1
    return int(np.prod(labels.shape[1:], dtype=np.int64))
