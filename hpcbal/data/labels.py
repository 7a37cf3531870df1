"""Look at labels before training: are they what was meant, and do classes of two datasets agree?"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hpcbal.data.dataset import MAX_CLASSES, AnySample, Dataset, Promises, labels_as_array
from hpcbal.errors import DataError

_MAX_NAMED = 5
_MANY_UNUSED = 1000


def class_labels(dataset: Dataset) -> NDArray[np.int64] | None:
    """The labels of a dataset in the order of its samples, if it keeps them in its attribute `labels`.

    Returns: shape (num_samples,); None if there is no such attribute, or it holds anything else.
    """
    try:
        labels = labels_as_array(getattr(dataset, "labels", None))
    except (TypeError, ValueError):  # rows of different lengths
        return None
    if labels.shape != (len(dataset),) or labels.dtype.kind not in "iu":
        return None
    if labels.dtype.itemsize == 8 and labels.dtype.kind == "u":  # what is beyond int64 is no class either way
        labels = np.minimum(labels, np.iinfo(np.int64).max)
    return labels.astype(np.int64)


def doubts_about(dataset: Dataset) -> tuple[str, ...]:
    """Return doubts about the classes of a dataset, as sentences for a warning.

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


def class_names(dataset: Dataset) -> tuple[str, ...] | None:
    """Return the names of a dataset's classes in the order of their numbers.

    Returns: its attribute `class_names`, one text for each of `num_classes`; None if it has none, or holds
        anything else.
    """
    given = getattr(dataset, "class_names", None)
    if not isinstance(given, list | tuple | np.ndarray) or len(given) != dataset.num_classes:
        return None
    return tuple(name.decode("utf-8", "replace") if isinstance(name, bytes) else str(name) for name in given)


def difference(theirs: Sequence[str], ours: Sequence[str], *, may_lack: bool = False) -> str | None:
    """Return how two lists of class names differ, other than in their order; None if they do not.

    Args:
        theirs: "cows is no class there" is said of one that only `theirs` has.
        ours: "horses is missing" is said of one that only `ours` has.
        may_lack: whether `theirs` may lack some, as held-out data without samples of a rare class do.
    """
    if sorted(theirs) == sorted(ours) and len(set(ours)) == len(ours):
        return None
    if len(set(ours)) < len(ours) or len(set(theirs)) < len(theirs):
        return "several classes have the same name, so they cannot be matched"
    wrong = [name for name in theirs if name not in set(ours)]
    if may_lack and not wrong:
        return None
    missing = [name for name in ours if name not in set(theirs)]
    same = {_folded(name): name for name in missing}
    alike = [f"{name!r} is {same[_folded(name)]!r} there" for name in wrong if _folded(name) in same]
    if alike:
        return f"{_some(alike)}: upper and lower case and spaces count"
    parts = [f"{_some(wrong)} {'is' if len(wrong) == 1 else 'are'} not among them"] if wrong else []
    parts += [f"{_some(missing)} {'is' if len(missing) == 1 else 'are'} missing"] if missing else []
    return ", ".join(parts)


def in_words(names: Sequence[str]) -> str:
    """Return the first names, and how many more there are."""
    return _some(list(names))


class Relabelled:
    """A dataset whose classes get the numbers that they have in another one.

    Args:
        dataset: its labels are classes, with names.
        names: all names in the order that is wanted; the dataset may have only some of these.

    Attributes:
        class_names: `names`.
        labels: the new numbers, if the dataset lists its labels.
        num_classes: number of `names`.
        remarks: those of the dataset, and that its classes have other numbers now.
    """

    def __init__(self, dataset: Dataset, names: Sequence[str]) -> None:
        own = class_names(dataset)
        assert own is not None
        self._dataset = dataset
        self._numbers = np.array([names.index(name) for name in own], np.int64)
        self._promises = Promises(dataset.sample_spec, dataset.label_spec, dataset.num_classes)
        self.class_names, self.num_classes = tuple(names), len(names)
        found = class_labels(dataset)
        self.labels = None if found is None else self._renumbered(found)
        lacking = [name for name in names if name not in own]
        how = f"it has no {_some(lacking)}" if lacking else f"its order is another one ({in_words(own)})"
        self.remarks = (*getattr(dataset, "remarks", ()), f"its classes were matched by name: {how}")

    def __getattr__(self, name: str) -> Any:
        """Everything else is as in the dataset."""
        if name.startswith("__") or name == "_dataset":  # while a copy is made, there is no dataset yet
            raise AttributeError(name)
        return getattr(self._dataset, name)

    def __len__(self) -> int:
        return len(self._dataset)

    def read(self, sample_id: int) -> tuple[AnySample, Any]:
        """A sample of the dataset, and the new number of its class."""
        raw, label = self._promises.check(self._dataset.read(sample_id))
        return raw, self._numbers[int(label)]

    def _renumbered(self, labels: NDArray[np.int64]) -> NDArray[np.int64]:
        """Labels that are no class stay as they are: their samples are broken."""
        is_class = (labels >= 0) & (labels < len(self._numbers))
        return np.where(is_class, self._numbers[np.where(is_class, labels, 0)], labels)


def _folded(name: str) -> str:
    return " ".join(name.replace("_", " ").replace("-", " ").casefold().split())


def _some(texts: list[str]) -> str:
    more = f" and {len(texts) - _MAX_NAMED} more" if len(texts) > _MAX_NAMED else ""
    return ", ".join(texts[:_MAX_NAMED]) + more
