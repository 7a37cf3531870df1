"""Datasets: numbered samples with labels, each readable on its own; samples that cannot be used."""

from __future__ import annotations

import inspect
import math
import reprlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from hpcbal.config.source.meant import did_you_mean
from hpcbal.data.spec import UNNAMED, LabelSpec, SampleSpec
from hpcbal.errors import DataError, HpcbalError


class BadSample(HpcbalError):  # noqa: N818 - a fact about data, handled, not an error of the run
    """Sample `sample_id`, found at `where` (such as a file name), cannot be used, for `reason`."""

    def __init__(self, sample_id: int, where: str, reason: str) -> None:
        self.sample_id = sample_id
        self.where = where
        self.reason = reason
        super().__init__(sample_id, where, reason)  # args: pickle passes these to __init__

    def __str__(self) -> str:
        return f"sample {self.sample_id} ({self.where}): {self.reason}"


class UnusableSampleError(HpcbalError):
    """Raised by an operation that knows the reason but not the sample; becomes a `BadSample`."""


MOST_FOR_DOT = 8192
"""Elements up to which a dot product is faster than looking at each value; BLAS may use threads for more."""


def is_finite(array: NDArray[Any]) -> bool:
    """Whether a floating-point array contains neither NaN nor infinities."""
    if array.size <= MOST_FOR_DOT:
        values = array.ravel()
        if math.isfinite(values.dot(values)):
            return True  # else large values may have overflowed
    return bool(np.isfinite(array).all())


def describe_nonfinite(array: NDArray[Any]) -> str:
    """How many values are NaN or infinite, for people."""
    num_nan, num_infinite = int(np.isnan(array).sum()), int(np.isinf(array).sum())
    found = [f"{num} {name}" for num, name in ((num_nan, "NaN"), (num_infinite, "infinite")) if num]
    return f"{' and '.join(found)} of {array.size} values"


def unmasked(value: Any) -> Any:
    """Return a masked array of NumPy as a plain one, and everything else as it is.

    Raises:
        UnusableSampleError: if values are masked. They are missing: what stands in their place, often -999,
            is no number of the sample.
    """
    if not isinstance(value, np.ma.MaskedArray):
        return value
    if num_masked := int(np.ma.getmaskarray(value).sum()):
        raise UnusableSampleError(
            f"{num_masked} of {value.size} values are masked, allowed: none; fill them, as numpy.ma.filled "
            "does, or leave the sample out"
        )
    return np.asarray(value)


def labels_as_array(labels: Any) -> NDArray[Any]:
    """Return the labels of a dataset as an array; those that are masked are -1, which is no class, or NaN.

    Raises:
        TypeError, ValueError: if they are no array, such as rows of different lengths.
    """
    array: NDArray[Any]
    if isinstance(labels, np.ma.MaskedArray) and labels.dtype.kind in "biuf":
        is_class = labels.dtype.kind != "f"
        array = np.array(labels, np.int64 if is_class else labels.dtype)
        array[np.ma.getmaskarray(labels)] = -1 if is_class else np.nan
    else:
        array = np.asarray(labels)
    return array


MAX_SAMPLES = 10**9
"""Every rank holds the ids of all samples, 8 bytes each."""

MAX_CLASSES = 10**7
"""Every network has a row of weights for each class; the largest published tasks have a few million."""

RawSample = bytes | NDArray[Any]
"""One array of a sample that `Dataset.read` returns: an encoded image (PNG, JPEG) or an array."""

AnySample = RawSample | Mapping[str, RawSample]
"""The sample that `Dataset.read` returns: one array, or several by name."""

RawSpec = SampleSpec | None | Mapping[str, SampleSpec | None]
"""The spec of such samples; None for an encoded image."""


def specs_by_name(spec: RawSpec) -> Mapping[str, SampleSpec | None]:
    """Return the spec of each array of a sample; that of one array without a name is under `UNNAMED`."""
    return spec if isinstance(spec, Mapping) else {UNNAMED: spec}


def is_encoded(spec: RawSpec) -> bool:
    """Whether samples have an encoded image."""
    return None in specs_by_name(spec).values()


def evenly(length: int, most: int) -> Sequence[int]:
    """Return at most `most` of the numbers 0..length-1, spread evenly, in an order whose start is, too."""
    chosen = np.unique(np.linspace(0, length - 1, min(length, most)).round().astype(np.int64)).tolist()
    return [each for first in range(8) for each in chosen[first::8]]


class Dataset(Protocol):
    """Numbered samples 0..len-1; write one as a plain class and name it in `data.dataset`.

    The constructor may raise any exception: it ends the run with a clear message. An exception from `read`
    marks that one sample as bad. Every rank that preprocesses makes its own object, so open files lazily, in
    `read`.

    Eight attributes are optional, and therefore not listed as members: `validation_ids`, a sequence of sample
    ids, if the set comes with its own split (`data.validation_fraction` is then not used); `fingerprint`, a
    string that differs for other data (a run refuses to resume with other data); `labels`, the classes of all
    samples, shape (len,) of integers (a run then warns of strange ones before it starts); `class_names`, a
    text for each of `num_classes` (validation and test data, and weights to start from, are then compared by
    name, and not only by number); `remarks` and `notes`, sentences to show before the run starts, as warnings
    and as information; `sample_weights`, how much each sample counts in the loss, numbers from 0 on, shape
    (len,); and `sizes`, the relative size of each sample, such as its number of frames: numbers above 0,
    shape (len,), or a function of the sample's id. Without it, the size of a sample is the product of the
    lengths that differ.

    Samples may have several named arrays, and several named labels: `sample_spec` and `label_spec` are then
    mappings from names to specs, `num_classes` one from names of labels to numbers, and `read` returns
    mappings.
    """

    def __len__(self) -> int:
        """Number of samples, training and validation together."""
        ...

    @property
    def num_classes(self) -> Any:
        """Labels that are classes are in 0..num_classes-1; from 1 to `MAX_CLASSES`."""
        ...

    @property
    def sample_spec(self) -> RawSpec:
        """The arrays that `read` returns; None if it returns encoded images as bytes."""
        ...

    @property
    def label_spec(self) -> LabelSpec:
        """The labels that `read` returns."""
        ...

    def read(self, sample_id: int) -> tuple[Any, Any]:
        """Sample `sample_id` and its label (a number, or an array of `label_spec.shape`)."""
        ...

    def describe(self, sample_id: int) -> str:
        """Where the sample comes from, for people: a file name, or file and row."""
        ...


MEMBERS = ("__len__", "num_classes", "sample_spec", "label_spec", "read", "describe")


def check_dataset(dataset: Any, name: str, key: str = "data.dataset") -> None:
    """Check that `dataset` has every member of `Dataset`, and that a run can use their values.

    Args:
        dataset: what the callable in `data.dataset` returned.
        name: its import path, for the message.
        key: what names it, for the message.

    Raises:
        DataError: if members are missing (all are named), or one of them has another value.
    """
    missing = [member for member in MEMBERS if not hasattr(dataset, member)]
    if missing:
        raise DataError(
            f"{key} {name}: got a {type(dataset).__name__} without {', '.join(missing)}; "
            f"a dataset needs {', '.join(MEMBERS)} (see hpcbal.data.dataset.Dataset)"
        )
    check_length(dataset, f"{key} {name}")
    wrong = [
        f"{member} is {_shown(getattr(dataset, member))}, allowed: {allowed}"
        for member, is_usable, allowed in (
            ("num_classes", _is_number_of_classes, f"a whole number from 1 to {MAX_CLASSES}"),
            ("sample_spec", _is_spec_of_samples, "SampleSpec.of(shape, dtype), or None for encoded images"),
            ("label_spec", _is_spec_of_labels, "LabelSpec(), or LabelSpec(shape, dtype) with a numeric type"),
        )
        if not _all_usable(getattr(dataset, member), is_usable)
    ]
    wrong += [] if wrong else _wrong_names(dataset)
    if wrong:
        raise DataError(f"{key} {name}: {'; '.join(wrong)}")


def _all_usable(value: Any, is_usable: Callable[[Any], bool]) -> bool:
    """Whether a value, or each of those in a mapping by name, is usable."""
    if not isinstance(value, Mapping):
        return is_usable(value)
    return bool(value) and all(is_usable(each) for each in value.values())


_TAKEN = ("mask", "lengths", "training", "name", "args", "val")
"""Names with another meaning for models, in the configuration or in results."""


def _wrong_names(dataset: Any) -> list[str]:
    """Return what is wrong with the names of arrays and labels."""
    found = []
    for member in ("sample_spec", "label_spec"):
        given = getattr(dataset, member)
        for name in given if isinstance(given, Mapping) else ():
            if not isinstance(name, str) or not name.isidentifier() or name in _TAKEN or name[:4] == "val_":
                found.append(
                    f"{member} has the name {name!r}, allowed: names of Python, but not {', '.join(_TAKEN)} "
                    "or val_..."
                )
    labels, classes = dataset.label_spec, dataset.num_classes
    if isinstance(labels, Mapping) != isinstance(classes, Mapping) or (
        isinstance(labels, Mapping) and set(labels) != set(classes)
    ):
        found.append(
            f"num_classes is {classes}, allowed with label_spec {_shown(labels)}: "
            + (
                f"{{{', '.join(f'{name}: ...' for name in labels)}}}"
                if isinstance(labels, Mapping)
                else "a number"
            )
        )
    return found


def _is_number_of_classes(value: Any) -> bool:
    is_whole = isinstance(value, int | np.integer) and not isinstance(value, bool)
    return is_whole and bool(1 <= value <= MAX_CLASSES)


def _is_spec_of_samples(value: Any) -> bool:
    """Whether this is None, or equals what `SampleSpec.of` makes of the same shape and type."""
    if not isinstance(value, SampleSpec):
        return value is None
    try:
        return value == SampleSpec.of(value.shape, value.dtype, value.max_bytes)
    except DataError:
        return False


def _is_spec_of_labels(value: Any) -> bool:
    if not isinstance(value, LabelSpec) or not isinstance(value.shape, tuple):
        return False
    try:
        kind = np.dtype(value.dtype).kind
    except (TypeError, ValueError):
        return False
    return kind in "biuf" and all(
        isinstance(length, int | np.integer) and length >= 1 for length in value.shape
    )


def _shown(value: Any) -> str:
    if inspect.isclass(value):
        return f"the class {value.__name__}"
    if callable(value):
        return "a method (does it lack @property?)"
    return repr(value) if isinstance(value, SampleSpec | LabelSpec) else reprlib.repr(value)


def check_length(dataset: Any, shown: str) -> int:
    """Return how many samples there are; Python refuses results below 0 or above 2**63 - 1, or no numbers.

    Args:
        shown: what names the dataset, for messages.

    Raises:
        DataError: if `__len__` returns no number from 1 to `MAX_SAMPLES`, or raises.
    """
    try:
        num_samples = len(dataset)
    except Exception as error:  # a user's code may raise anything
        raise DataError(
            f"{shown}: __len__ must return the number of samples, a whole number from 1 to "
            f"{MAX_SAMPLES}, but it ended with {type(error).__name__}: {error}"
        ) from error
    if num_samples < 1:
        raise DataError(f"{shown}: the dataset has no samples")
    if num_samples > MAX_SAMPLES:
        raise DataError(
            f"{shown}: __len__ returns {num_samples}, allowed: at most {MAX_SAMPLES} samples, "
            "because every rank keeps their order in memory"
        )
    return num_samples


class Promises:
    """Check that each return of a dataset's `read` is a sample and its label.

    Args:
        sample: spec of the samples.
        label: spec of the labels.
        num_classes: labels that are classes are in 0..num_classes-1; unused for named labels.
    """

    def __init__(self, sample: RawSpec, label: LabelSpec, num_classes: int) -> None:
        self._is_named, self._label = isinstance(sample, Mapping), label
        self._samples = specs_by_name(sample)
        self._labels = {
            name: _LabelPromise(name, spec, spec.num_classes or num_classes)
            for name, spec in label.by_name.items()
        }

    def check(self, returned: object) -> tuple[AnySample, NDArray[Any]]:
        """Split what `read` returned into the sample, as it is, and the label, as an array of its spec.

        Raises:
            UnusableSampleError: if it is no pair, or one of them is not as promised.
        """
        if not isinstance(returned, tuple | list) or len(returned) != 2:
            lacks = " (does it lack a return?)" if returned is None else ""
            raise UnusableSampleError(
                f"read returned {kind_of(returned)}{lacks}, allowed: two values, the sample and its label"
            )
        raw, label = returned
        named = _by_name(raw, self._samples, "arrays", is_named=self._is_named)
        arrays = {name: _checked_array(name, named[name], spec) for name, spec in self._samples.items()}
        labels = _by_name(label, self._labels, "labels", is_named=bool(self._label.parts))
        packed = self._label.packed({name: each.check(labels[name]) for name, each in self._labels.items()})
        return arrays if self._is_named else arrays[UNNAMED], packed


def _by_name(given: Any, promised: Mapping[str, Any], what: str, *, is_named: bool) -> Mapping[str, Any]:
    """Return a sample or a label as `read` has returned it, by the names that were promised."""
    if not is_named:
        return {UNNAMED: given}
    names = ", ".join(promised)
    if not isinstance(given, Mapping):
        raise UnusableSampleError(f"read returned {kind_of(given)}, promised: a dict of the {what} {names}")
    if given.keys() != promised.keys():
        extra = [name for name in given if name not in promised]
        hint = did_you_mean(str(extra[0]), list(promised)) if extra else ""
        raise UnusableSampleError(
            f"read returned the {what} {', '.join(map(str, given)) or 'none'}, promised: {names}{hint}"
        )
    return given


def _of(name: str) -> str:
    """The beginning of a message about an array or a label with this name."""
    return f"{name}: " if name else ""


def _checked_array(name: str, raw: RawSample, promised: SampleSpec | None) -> RawSample:
    raw = unmasked(raw)
    if promised is None:
        if isinstance(raw, bytes | bytearray | memoryview):
            return raw
        if isinstance(raw, np.ndarray) and raw.dtype == np.uint8 and raw.ndim == 1:
            return raw.tobytes()
        raise UnusableSampleError(f"{_of(name)}read returned {kind_of(raw)}, promised: encoded image bytes")
    if not isinstance(raw, np.ndarray) or not promised.admits(raw):
        raise UnusableSampleError(f"{_of(name)}read returned {kind_of(raw)}, promised: an array {promised}")
    return raw


class _LabelPromise:
    """Check one label of a sample."""

    def __init__(self, name: str, label: LabelSpec, num_classes: int) -> None:
        self._name, self._label, self._num_classes = name, label, num_classes
        self._dtype = np.dtype(label.dtype)
        self._is_class = label.is_class

    def check(self, label: object) -> NDArray[Any]:
        try:
            given: NDArray[Any] = np.array(unmasked(label))
        except ValueError:  # rows of different lengths
            raise self._wrong(label) from None
        of = _of(self._name)
        if given.shape != self._label.shape:
            hint = " (the number of the class, not one-hot)" if self._is_class else ""
            raise UnusableSampleError(
                f"{of}label of shape {given.shape}, promised: {self._label.shape}{hint}"
            )
        if given.dtype.kind not in "biuf":
            raise self._wrong(given.tolist())
        if given.dtype.kind == "f" and not is_finite(given):
            raise UnusableSampleError(f"{of}label: {describe_nonfinite(given)}")
        array = given
        if given.dtype != self._dtype:
            with np.errstate(over="ignore", invalid="ignore"):
                array = given.astype(self._dtype)
            # A type with a fraction rounds; any other must hold the same number, or 1.5 would be class 1.
            is_kept = is_finite(array) if self._dtype.kind == "f" else np.array_equal(array, given)
            if not is_kept:
                raise self._wrong(given.tolist())
        if self._is_class and not 0 <= array < self._num_classes:
            raise self._wrong(given.tolist())
        return array

    def _wrong(self, label: object) -> UnusableSampleError:
        allowed = f"{'numbers' if self._dtype.kind == 'f' else 'whole numbers'} of type {self._dtype}"
        if self._is_class:
            allowed = f"whole numbers, 0..{self._num_classes - 1}"
        return UnusableSampleError(f"{_of(self._name)}label {reprlib.repr(label)}, allowed: {allowed}")


def kind_of(value: object) -> str:
    """Describe a value for people: its type, and the shape of an array."""
    if isinstance(value, np.ndarray):
        return f"an array of shape {value.shape} and type {value.dtype}"
    if value is None:
        return "None"
    if isinstance(value, tuple | list):
        return f"a {type(value).__name__} of length {len(value)}"
    return f"a value of type {type(value).__name__}"
