"""Look at all labels of a dataset for signs that they are not what was meant, without reading a sample."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from hpcbal.data.dataset import Dataset

_MAX_NAMED = 5


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
    return labels.astype(np.int64)


def doubts_about(dataset: Dataset) -> tuple[str, ...]:
    """What is strange about the classes of a dataset, as sentences for a warning.

    Networks get one output for each of `num_classes`. Doubtful are labels that are no class, data of one
    class, and classes without samples, as with labels that start at 1 or are the ids of something else.
    """
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
    elif least < 0:
        remedy = "number the classes from 0"
    else:
        remedy = f"raise num_classes to {most + 1}, or number the classes from 0 without gaps"
    given = f"the labels are {least} to {most}" if least < most else f"every label is {least}"
    broken = "1 sample is" if num_broken == 1 else f"{num_broken} samples are"
    return f"{given}, allowed: 0 to {num_classes - 1}, so {broken} broken; {remedy}"
