"""Look at all labels of a dataset for signs that they are not what was meant, without reading a sample."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from hpcbal.data.dataset import MAX_CLASSES, Dataset
from hpcbal.errors import DataError

_MAX_NAMED = 5
_MANY_UNUSED = 1000


def class_labels(dataset: Dataset) -> NDArray[np.int64] | None:
    """The labels of a dataset in the order of its samples, if it keeps them in its attribute `labels`.

    Returns: shape (num_samples,); None if there is no such attribute, or it holds anything else.
    """
    try:
        labels: NDArray[Any] = np.asarray(getattr(dataset, "labels", None))
    except (TypeError, ValueError):  # rows of different lengths
        return None
    if labels.shape != (len(dataset),) or labels.dtype.kind not in "iu":
        return None
    if labels.dtype.itemsize == 8 and labels.dtype.kind == "u":  # what is beyond int64 is no class either way
        labels = np.minimum(labels, np.iinfo(np.int64).max)
    return labels.astype(np.int64)


def doubts_about(dataset: Dataset) -> tuple[str, ...]:
    """What is strange about the classes of a dataset, as sentences for a warning.

    Networks get one output for each of `num_classes`. Doubtful are labels that are no class, data of one
    class, and classes without samples, as with labels that start at 1 or are the ids of something else; and
    another number of names.
    """
    num_classes = dataset.num_classes
    names = getattr(dataset, "class_names", None)
    if isinstance(names, list | tuple | np.ndarray) and len(names) != num_classes:
        return (
            *_doubts_about_labels(dataset),
            f"class_names has {len(names)} names for {num_classes} classes, so it is not used",
        )
    return _doubts_about_labels(dataset)


def check_classes(dataset: Dataset) -> None:
    """Refuse labels that are the ids of something else, for which networks would get a huge last layer.

    A dataset may have as many classes without samples as it likes if it names its classes.

    Raises:
        DataError: if there are `_MANY_UNUSED` classes without samples, and 100 for each with samples.
    """
    num_classes = dataset.num_classes
    if num_classes <= _MANY_UNUSED or not dataset.label_spec.is_class:
        return
    labels = None if getattr(dataset, "class_names", None) is not None else class_labels(dataset)
    if labels is None:
        return
    used = np.unique(labels)
    num_unused = num_classes - len(used)
    if num_unused < max(_MANY_UNUSED, 100 * len(used)) or used[0] < 0 or used[-1] >= num_classes:
        return
    first = ", ".join(f"{label}: {number}" for number, label in enumerate(used[:_MAX_NAMED].tolist()))
    more = f", and so on for {len(used) - _MAX_NAMED} more" if len(used) > _MAX_NAMED else ""
    raise DataError(
        f"data.dataset: the labels are {used[0]} to {used[-1]}, but only {len(used)} different ones occur, "
        f"and each network would get {num_classes} outputs; number the classes from 0 without gaps, "
        f"{{{first}}}{more}, as np.unique(labels, return_inverse=True)[1] does; if all {num_classes} "
        "are classes, name them in class_names"
    )


def _doubts_about_labels(dataset: Dataset) -> tuple[str, ...]:
    num_classes = dataset.num_classes
    if not dataset.label_spec.is_class:
        return ()
    labels = class_labels(dataset)
    used = np.zeros(0, np.int64) if labels is None else np.unique(labels)
    if labels is not None and (used[0] < 0 or used[-1] >= num_classes):
        return (_beyond(labels, num_classes),)
    if num_classes == 1:
        return ("the data has one class only, so there is nothing to learn",)
    if labels is None:
        return ()
    if len(used) == 1:
        return (f"every label is {used[0]}: with one class there is nothing to learn",)
    if len(used) == num_classes:
        return ()
    outputs = f"each network gets {num_classes} outputs for {len(used)} classes"
    if used[0] == 1 and len(used) == num_classes - 1:
        return (f"the labels are 1 to {used[-1]}, so class 0 has no samples and {outputs}; subtract 1",)
    unused = np.setdiff1d(np.arange(min(num_classes, len(used) + _MAX_NAMED)), used)[:_MAX_NAMED]
    more = num_classes - len(used) - len(unused)
    named = ", ".join(map(str, unused)) + (f" and {more} more" if more else "")
    which = f"class {named} has no samples" if len(unused) == 1 else f"classes {named} have no samples"
    return (
        f"the labels are {used[0]} to {used[-1]}, but {which}, and {outputs}; number the classes from 0 "
        "without gaps",
    )


def _beyond(labels: NDArray[np.int64], num_classes: int) -> str:
    """The sentence about labels that are no class: their samples are broken."""
    least, most = int(labels.min()), int(labels.max())
    num_broken = int(((labels < 0) | (labels >= num_classes)).sum())
    if least == 1 and most == num_classes:
        remedy = "subtract 1"
    elif least < 0 or most >= MAX_CLASSES:
        remedy = "number the classes from 0"
    else:
        remedy = f"raise num_classes to {most + 1}, or number the classes from 0 without gaps"
    given = f"the labels are {least} to {most}" if least < most else f"every label is {least}"
    broken = "1 sample is" if num_broken == 1 else f"{num_broken} samples are"
    return f"{given}, allowed: 0 to {num_classes - 1}, so {broken} broken; {remedy}"
