"""Open the dataset that a config names, and those that hold no training samples."""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, Literal, cast

import numpy as np
from numpy.typing import NDArray

from hpcbal import env
from hpcbal.data.content import BETWEEN_PARTS
from hpcbal.data.dataset import Dataset, RawSample, RawSpec, check_dataset
from hpcbal.data.datasets.map_style import MapStyle
from hpcbal.data.foreign import is_foreign
from hpcbal.data.labels import Relabelled, class_labels, class_names, difference, in_words
from hpcbal.data.named import NamedArrays, WithNamedLabels, is_named_pair
from hpcbal.data.named_items import NamedItems, has_named_items
from hpcbal.data.sizes import declared_sizes, declared_weights
from hpcbal.data.spec import SampleSpec
from hpcbal.errors import DataError, HpcbalError, UserCodeError
from hpcbal.processes import leave_if_forked
from hpcbal.user_code import summary

if TYPE_CHECKING:
    from hpcbal.config import EnsembleConfig


def open_dataset(path: str, args: Mapping[str, Any], key: str = "data.dataset") -> Dataset:
    """Call the dataset's factory or class; what it returns may be a dataset of another library.

    Args:
        path: "package.module:callable", as in `data.dataset`.
        args: keyword arguments, as in `data.args`.
        key: what names the dataset, for messages.

    Raises:
        DataError: if arguments are wrong, or the result is not a dataset.
        InputError: if nothing exists at the import path.
        UserCodeError: if the module or the callable raises.
    """
    return cast("Dataset", _made(path, args, key, lambda found: _as_dataset(found, path, key)))


def open_items(path: str, args: Mapping[str, Any], key: str) -> Any:
    """Return what a dataset's factory or class returns, as it is; arguments and errors as `open_dataset`."""
    return _made(path, args, key, lambda found: found)


def _made(path: str, args: Mapping[str, Any], key: str, convert: Callable[[Any], Any]) -> Any:
    from hpcbal.config.imports import load_object

    factory = load_object(path)
    _check_args(factory, path, args, key)
    try:
        return convert(factory(**args))
    except (HpcbalError, KeyboardInterrupt):
        raise
    except BaseException as error:  # a user's code may raise anything
        raise UserCodeError(f"{key} {path}: cannot be opened: {summary(error)}") from error
    finally:
        leave_if_forked("the dataset")


def _as_dataset(dataset: Any, path: str, key: str) -> Any:
    if is_named_pair(dataset):
        dataset = NamedArrays(dataset[0], dataset[1], f"{key} {path}")
    elif is_foreign(dataset) and has_named_items(dataset):
        dataset = NamedItems(dataset, f"{key} {path}")
    elif is_foreign(dataset):
        dataset = MapStyle(dataset, f"{key} {path}")
    check_dataset(dataset, path, key)
    if isinstance(dataset.label_spec, Mapping):
        dataset = WithNamedLabels(dataset)
    return dataset


def _check_args(factory: Any, path: str, args: Mapping[str, Any], key: str) -> None:
    from hpcbal.config.callables import DATASET, misfits

    try:
        signature = inspect.signature(factory)
    except ValueError:  # some callables written in C have no signature
        return
    found = misfits(path, signature, args, DATASET)
    if found:
        raise DataError(f"{key.removesuffix('.dataset')}.args: {'; '.join(misfit.text for misfit in found)}")


def open_held_out(config: EnsembleConfig, name: Literal["validation", "test"], trained: Dataset) -> Dataset:
    """Open the dataset in `data.validation` or `data.test`, with the classes of the one that trains.

    Raises:
        DataError: if it cannot be opened, or its samples or classes are others.
        InputError: if nothing exists at the import path.
        UserCodeError: if its module or its callable raises.
    """
    section = config.data.validation if name == "validation" else config.data.test
    assert section is not None
    path, key = section.path_beside(config.data), f"data.{name}.dataset"
    dataset = open_dataset(path, env.expanded(section.args, f"data.{name}.args"), key)
    return of_same_kind(dataset, trained, f"{key} {path}")


def of_same_kind(dataset: Dataset, trained: Dataset, shown: str) -> Dataset:
    """Return a dataset on which networks trained on another one can be tried.

    Classes are compared by name where both datasets name them, and by number otherwise.

    Args:
        shown: key and import path of `dataset`, for the message.

    Returns: the dataset; if its classes are those of the other one in another order, or only some of them,
        with the numbers of the other one; with as many classes as the other one, if it has only counted its
        own.

    Raises:
        DataError: if samples, labels or classes differ; all differences are named.
    """
    theirs, ours = class_names(dataset), class_names(trained)
    if theirs is None or ours is None or theirs == ours:
        if getattr(dataset, "is_counted", False) and trained.label_spec.is_class:
            dataset = _with_classes_of(trained, dataset, shown)
        _check_kinds(dataset, trained, shown)
        return dataset
    why = difference(theirs, ours, may_lack=True)
    if why is None and not trained.label_spec.is_class:
        why = "their order differs, and a label is not one class"
    if why is not None:
        raise DataError(
            f"{shown}: its classes are {in_words(theirs)}, but {in_words(ours)} in data.dataset: {why}; all "
            "its classes must be among those, with the same names"
        )
    matched = Relabelled(dataset, ours)
    _check_kinds(matched, trained, shown)
    return matched


def only_counted(dataset: Dataset, trained: Dataset, shown: str) -> tuple[str, ...]:
    """Return a sentence if classes cannot be compared by name, because only one dataset names them.

    Args:
        shown: what names `dataset`, for the sentence.
    """
    theirs, ours = class_names(dataset), class_names(trained)
    names = theirs or ours
    if names is None or (theirs is None) is (ours is None) or not trained.label_spec.is_class:
        return ()
    with_names, without = (shown, "data.dataset") if theirs else ("data.dataset", shown)
    return (
        f"the classes of {without} are numbers and those of {with_names} have names, so class 0 was taken "
        f"for {names[0]!r}, and class {len(names) - 1} for {names[-1]!r}; if that is wrong, add class_names",
    )


def _with_classes_of(trained: Dataset, dataset: Dataset, shown: str) -> Dataset:
    """The dataset with the classes of another one; its labels show only those that occur in it.

    Raises:
        DataError: if one of its labels is no class there.
    """
    theirs, ours = int(dataset.num_classes), int(trained.num_classes)
    if theirs > ours:
        how = "as its largest label shows; set num_classes of hpcbal.data:map_style there if it lacks some"
        is_counted = getattr(trained, "is_counted", False)
        raise DataError(
            f"{shown}: its largest label is {theirs - 1}, but data.dataset has the classes 0 to {ours - 1}"
            f"{f', {how}' if is_counted else ''}"
        )
    matched: Any = copy.copy(dataset)
    matched.num_classes = ours
    return cast("Dataset", matched)


def _check_kinds(dataset: Dataset, trained: Dataset, shown: str) -> None:
    different = [
        f"{member} is {theirs}, but {ours} in data.dataset"
        for member, theirs, ours in (
            ("num_classes", int(dataset.num_classes), int(trained.num_classes)),
            ("sample_spec", _kind(dataset.sample_spec), _kind(trained.sample_spec)),
            ("label_spec", dataset.label_spec, trained.label_spec),
        )
        if theirs != ours
    ]
    if different:
        is_set = dataset.num_classes != trained.num_classes and trained.label_spec.is_class
        is_foreign = isinstance(dataset, MapStyle) or getattr(trained, "is_counted", False)
        where = " (num_classes of hpcbal.data:map_style sets it)" if is_set and is_foreign else ""
        raise DataError(
            f"{shown}: {'; '.join(different)}; both need samples and labels of the same kind{where}"
        )


def _kind(spec: RawSpec) -> str:
    """Shape and type; the upper bound of samples that differ in size may differ."""
    if isinstance(spec, Mapping):
        return "{" + ", ".join(f"{name}: {_kind(each)}" for name, each in sorted(spec.items())) + "}"
    return "None (encoded images)" if spec is None else f"{spec.shape} of {spec.dtype}"


def ids_by_part(dataset: Dataset, ids: Iterable[int]) -> list[set[int]]:
    """Return ids of samples for each part of a dataset that has a content of its own."""
    return dataset.by_part(ids) if isinstance(dataset, WithOwnValidation) else [set(ids)]


class WithOwnValidation:
    """Training samples, and behind them the validation samples of another dataset.

    Attributes:
        num_classes, label_spec: those of both datasets.
        is_counted: whether the training samples' number of classes is only counted, see `MapStyle`.
        sample_spec: shape and type of both; its bound is the larger one.
        validation_ids: ids of the validation samples: all from the number of training samples on.
        fingerprint, content_fingerprint: of both.
        is_identified: whether both have one.
        labels: classes of all samples, if both datasets declare them.
        class_names: those of the training samples.
        remarks: those of both datasets, and whether their classes could not be compared.
        notes: those of both datasets.
        reading: how an item of the training samples becomes a sample, if they are of another library.
        sizes, sample_weights: of all samples, if both datasets declare them.

    Args:
        trained: must have no validation samples of its own.
        validation: a dataset of the same kind.

    Raises:
        DataError: if one of them declares a split, or only one of them declares sizes or weights.
    """

    def __init__(self, trained: Dataset, validation: Dataset) -> None:
        if getattr(trained, "validation_ids", None) is not None:
            raise DataError(
                "data.validation: the dataset in data.dataset has validation samples of its own "
                "(validation_ids); leave out data.validation, or use a dataset without them"
            )
        self._parts = (trained, validation)
        self._num_trained = len(trained)
        self.num_classes = int(trained.num_classes)
        self.is_counted = getattr(trained, "is_counted", False)
        self.label_spec = trained.label_spec
        self.sample_spec = _larger(trained.sample_spec, validation.sample_spec)
        self.validation_ids = np.arange(self._num_trained, len(self))
        fingerprints = [str(getattr(part, "fingerprint", "")) for part in self._parts]
        self.fingerprint = " and ".join(fingerprints)
        self.is_identified = all(fingerprints)
        contents = [str(getattr(part, "content_fingerprint", "")) for part in self._parts]
        self.content_fingerprint = BETWEEN_PARTS.join(contents) if any(contents) else ""
        self.labels = _of_both(self._parts, class_labels)
        self.class_names = class_names(trained)
        of_validation = [f"data.validation: {remark}" for remark in getattr(validation, "remarks", ())]
        of_both = only_counted(validation, trained, "data.validation")
        self.remarks = (*getattr(trained, "remarks", ()), *of_validation, *of_both)
        notes: tuple[str, ...] = tuple(getattr(trained, "notes", ()))
        others = [note for note in getattr(validation, "notes", ()) if note not in notes]
        self.notes = (*notes, *(f"data.validation: {note}" for note in others))
        self.reading = getattr(trained, "reading", None)
        self.sizes = self._declared_by_both("sizes", declared_sizes)
        self.sample_weights = self._declared_by_both("sample_weights", declared_weights)

    def __len__(self) -> int:
        return self._num_trained + len(self._parts[1])

    def read(self, sample_id: int) -> tuple[RawSample, Any]:
        """Read the sample from the dataset that holds it."""
        part, own_id = self._place(sample_id)
        return part.read(own_id)

    def describe(self, sample_id: int) -> str:
        """Return the name of the sample in the dataset that holds it."""
        part, own_id = self._place(sample_id)
        return part.describe(own_id) if part is self._parts[0] else f"validation: {part.describe(own_id)}"

    def by_part(self, ids: Iterable[int]) -> list[set[int]]:
        """Return ids of samples by the dataset that holds them, as ids there."""
        found: list[set[int]] = [set(), set()]
        for sample_id in ids:
            part, own_id = self._place(sample_id)
            found[part is not self._parts[0]].add(own_id)
        return found

    def _declared_by_both(
        self, name: str, declared: Callable[[Dataset], NDArray[Any] | None]
    ) -> NDArray[Any] | None:
        found = [declared(part) for part in self._parts]
        if (found[0] is None) != (found[1] is None):
            without = "data.validation" if found[1] is None else "data.dataset"
            raise DataError(f"{without} declares no {name}, but the other dataset does; add them")
        return _of_both(self._parts, declared)

    def _place(self, sample_id: int) -> tuple[Dataset, int]:
        if sample_id < self._num_trained:
            return self._parts[0], sample_id
        return self._parts[1], sample_id - self._num_trained


def _larger(one: RawSpec, other: RawSpec) -> RawSpec:
    """The spec of the same shape and type with the larger bound; no bound is the largest."""
    if isinstance(one, Mapping) and isinstance(other, Mapping):
        return {name: cast("SampleSpec | None", _larger(spec, other[name])) for name, spec in one.items()}
    assert not isinstance(one, Mapping)
    assert not isinstance(other, Mapping)
    if one is None or other is None:
        return one
    if not one.is_bounded or not other.is_bounded:
        return other if one.is_bounded else one
    return max(one, other, key=lambda spec: spec.max_bytes)


def _of_both(
    parts: tuple[Dataset, Dataset], of: Callable[[Dataset], NDArray[Any] | None]
) -> NDArray[Any] | None:
    """Numbers of all samples, if both datasets have them."""
    found = [numbers for numbers in map(of, parts) if numbers is not None]
    return np.concatenate(found) if len(found) == len(parts) else None
