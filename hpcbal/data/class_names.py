"""Compare the classes of two datasets by name: equal numbers may mean other classes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hpcbal.data.class_labels import class_labels
from hpcbal.data.dataset import Dataset, RawSample
from hpcbal.data.promises import Promises

_MAX_NAMED = 5


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

    def read(self, sample_id: int) -> tuple[RawSample, Any]:
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
