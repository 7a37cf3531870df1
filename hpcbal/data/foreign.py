"""Objects of other libraries: whether one is read by number, and what it knows of its labels.

No library is imported to find out: classes are known by their names, and facts by where a library keeps them.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hpcbal.data.dataset import UnusableSampleError, check_length, labels_as_array
from hpcbal.data.items import Key
from hpcbal.data.tables import Table, by_place, is_table
from hpcbal.errors import DataError


def is_foreign(returned: Any) -> bool:
    """Whether this is meant to be a dataset of another library, and not one with the members of `Dataset`."""
    if hasattr(returned, "sample_spec") or hasattr(returned, "label_spec"):
        return False
    return (
        isinstance(returned, tuple)
        or inspect.isclass(returned)
        or hasattr(returned, "__getitem__")
        or hasattr(returned, "__iter__")
    )


class Pair:
    """Samples and labels in two arrays, tensors, lists, tables or columns, as items.

    Raises:
        UnusableSampleError: if a column of a table holds something other than numbers.
    """

    def __init__(self, samples: Any, labels: Any) -> None:
        self.tensors = (by_place(samples), by_place(labels))

    def __len__(self) -> int:
        return len(self.tensors[0])

    def __getitem__(self, number: int) -> tuple[Any, Any]:
        return self.tensors[0][number], self.tensors[1][number]

    @property
    def is_list(self) -> bool:
        """Whether samples are a list, or an array of objects: they may differ in shape."""
        dtype = getattr(self.tensors[0], "dtype", None)
        return dtype is None or getattr(dtype, "kind", "") == "O"


def as_items(given: Any, shown: str) -> Any:
    """Return an object with `len(items)` and `items[number]`: what is given, or a `Pair` or `Table` of it.

    Args:
        shown: what names the dataset, for messages.

    Raises:
        DataError: if it is something else, such as a dataset of iterable style.
    """
    name, bases = type(given).__name__, {base.__name__ for base in type(given).__mro__}
    if inspect.isclass(given):
        raise DataError(f"{shown}: got the class {given.__name__}, allowed: an object of it")
    if "DataLoader" in bases:
        raise DataError(
            f"{shown}: got a {name}, allowed: the dataset in it, its attribute 'dataset'; hpcbal makes the "
            "batches itself"
        )
    if "PyDataset" in bases:
        raise DataError(
            f"{shown}: got {name}, a PyDataset of Keras, whose items are batches, allowed: a dataset whose "
            "items are one sample and its label; hpcbal makes the batches itself"
        )
    if isinstance(given, Mapping):
        keys = ", ".join(map(str, given))
        raise DataError(
            f"{shown}: got a {name} with {keys}, allowed: one dataset; return one of "
            "them (of Hugging Face: with the argument split)"
        )
    if "IterableDataset" in bases or not hasattr(given, "__getitem__"):
        raise DataError(
            f"{shown}: got {name}, which is of iterable style, but samples are drawn by number; return "
            "a dataset with __len__ and __getitem__ (of Hugging Face: without streaming), or write its items "
            "into a file (hpcbal.data:hdf5)"
        )
    if isinstance(given, tuple):
        return _pair(given, shown)
    if isinstance(given, list) and given and not isinstance(given[0], tuple) and _holds_items(given[0]):
        raise DataError(
            f"{shown}: got a list of {type(given[0]).__name__}, allowed: one dataset; samples for validation "
            "are another one, in data.validation"
        )
    try:
        return Table(given) if is_table(given) else given
    except UnusableSampleError as error:
        raise DataError(f"{shown}: {error}") from None


def _pair(given: tuple[Any, ...], shown: str) -> Pair:
    if len(given) != 2 or all(isinstance(part, tuple) or _holds_items(part) for part in given):
        parts = ", ".join(type(part).__name__ for part in given)
        raise DataError(
            f"{shown}: got a tuple of length {len(given)} ({parts}), allowed: one pair (samples, labels); "
            "samples for validation are another dataset, in data.validation"
        )
    keyed = [type(part).__name__ for part in given if isinstance(part, Mapping)]
    if keyed:
        raise DataError(f"{shown}: got a {keyed[0]} in a pair, allowed: arrays, tensors, lists or tables")
    samples, labels = (check_length(part, shown) for part in given)
    if samples != labels:
        raise DataError(f"{shown}: got {samples} samples and {labels} labels, allowed: as many labels")
    try:
        return Pair(*given)
    except UnusableSampleError as error:
        raise DataError(f"{shown}: {error}") from None


def _holds_items(part: Any) -> bool:
    """Whether a part of a pair is a dataset of its own: each of its items has a sample and a label."""
    if isinstance(part, list) or hasattr(part, "dtype") or is_table(part) or not hasattr(part, "__getitem__"):
        return False
    try:
        return isinstance(part[0], tuple | Mapping)
    except Exception:  # a user's code may raise anything; it does so again when samples are read
        return False


def known_labels(items: Any, label: Key) -> NDArray[np.int64] | None:
    """Return the class of each item, as far as the object keeps them in one place.

    Known are a `Pair`, PyTorch's `TensorDataset`, the column of a table or of a Hugging Face dataset, the
    attributes `targets` and `labels`, and PyTorch's `Subset` and `ConcatDataset` of any of these.

    Args:
        label: where an item has its label.

    Returns: shape (len(items),); None if there are none, or they are no whole numbers.
    """
    try:
        found = labels_as_array(_labels(items, label))
    except (TypeError, ValueError, IndexError):  # such as rows of different lengths
        return None
    is_usable = found.dtype.kind in "biu" and found.size == len(items) and found.ndim in (1, 2)
    return found.reshape(-1).astype(np.int64) if is_usable else None


def places_without_label(items: Any, label: Key) -> NDArray[np.int64]:
    """Return the numbers of the items whose label is None or NaN, if the object keeps labels in one place.

    Args:
        label: where an item has its label.
    """
    try:
        found = labels_as_array(_labels(items, label))
    except (TypeError, ValueError, IndexError):
        return np.zeros(0, np.int64)
    if found.shape != (len(items),):
        return np.zeros(0, np.int64)
    if found.dtype.kind == "f":
        return np.flatnonzero(np.isnan(found))
    return np.flatnonzero([each is None for each in found])


def _labels(items: Any, label: Key) -> Any:
    tensors = getattr(items, "tensors", None)
    if isinstance(tensors, tuple) and len(tensors) == 2:
        return tensors[1]
    if isinstance(items, Table):
        return items.columns[label]
    if hasattr(items, "select_columns") and hasattr(items, "with_format"):
        return items.select_columns([label]).with_format("numpy")[:][label]
    if _is_subset(items):
        return labels_as_array(_labels(items.dataset, label))[np.asarray(items.indices, np.int64)]
    if parts := _parts(items):
        found = [labels_as_array(_labels(part, label)).reshape(len(part), -1) for part in parts]
        return np.concatenate(found)
    return getattr(items, "targets", getattr(items, "labels", None))


def known_class_names(items: Any, label: Key) -> tuple[str, ...] | None:
    """Return the names of the classes by number: of a Hugging Face column, or torchvision's `classes`."""
    features = inherited(items, "features")
    column = features.get(label) if isinstance(features, Mapping) else None
    names = getattr(column, "names", None) or inherited(items, "class_names", "classes")
    names = names.tolist() if hasattr(names, "tolist") else names  # of an array, or an index of pandas
    is_usable = isinstance(names, list | tuple) and all(isinstance(name, str) for name in names)
    return tuple(names) if names and is_usable else None


def inherited(items: Any, *names: str) -> Any:
    """Return the first of these attributes of an object, or of what it is a part or the sum of.

    Returns: None without any, or if those that it is the sum of differ.
    """
    for name in names:
        if (found := getattr(items, name, None)) is not None:
            return found
    if parts := _parts(items):
        of_parts = [inherited(part, *names) for part in parts]
        return of_parts[0] if len({repr(each) for each in of_parts}) == 1 else None
    return inherited(items.dataset, *names) if _is_subset(items) else None


def _parts(items: Any) -> Sequence[Any]:
    """Return the datasets that one puts together, like PyTorch's `ConcatDataset`; empty for others."""
    parts = getattr(items, "datasets", None)
    return parts if isinstance(parts, list) and hasattr(items, "cumulative_sizes") else []


def _is_subset(items: Any) -> bool:
    """Whether it is a part of another dataset, like PyTorch's `Subset`."""
    return hasattr(items, "dataset") and hasattr(items, "indices")
