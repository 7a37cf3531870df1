"""Datasets of other libraries as they are: PyTorch's of map style, Hugging Face's, tables, pairs of arrays.

All that is asked of them is `len(items)` and `items[number]`; no library is imported for them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from hpcbal.data.dataset import RawSample, UnusableSampleError, check_length, evenly
from hpcbal.data.foreign import (
    Pair,
    as_items,
    inherited,
    known_class_names,
    known_labels,
    places_without_label,
)
from hpcbal.data.held_samples import num_bytes_of
from hpcbal.data.items import (
    LAYOUTS,
    Columns,
    Key,
    Layout,
    Reading,
    arranged,
    content_of,
    digest_of,
    form_of,
    is_image,
    label_of,
    layout_of,
    sample_of,
    unrepeatable,
)
from hpcbal.data.spec import UNBOUNDED, LabelSpec, SampleSpec
from hpcbal.errors import DataError
from hpcbal.user_code import summary

TRIED, TRIED_BYTES, TRIED_TWICE = 64, 64 * 2**20, 8
"""Items and bytes at most that are read when a dataset is opened, and items that are read again."""

Tried = dict[int, tuple[RawSample, NDArray[Any]]]
"""Samples and labels by number; never empty."""


class MapStyle:
    """The items of a dataset of another library, as samples and labels.

    Shapes and types are those of at most `TRIED` items, spread evenly, that are read when it is made; an item
    that differs from them later is a broken sample.

    Attributes:
        num_classes: as given, else that of the items, the number of class names, or the largest known label
            + 1; if labels are no classes, the length of one.
        is_counted: whether `num_classes` is only the largest known label + 1.
        sample_spec: None if samples are encoded images.
        label_spec: one class if labels are whole numbers of shape () or (1,).
        labels: the class of each item, where it is known without reading all of them; else None.
        class_names: of the items, if they name them.
        validation_ids, sizes, sample_weights: those of the items, if they have any.
        remarks: labels that are missing, if labels are numbers with a fraction.
        notes: how arrays of three axes were understood, if their axes were moved.
        reading: how an item becomes a sample.
        fingerprint: that of the items, if it is a text; else a digest of their number, of the known labels,
            and of the items that were tried.
    """

    def __init__(
        self,
        given: Any,
        shown: str = "map_style",
        *,
        sample: Key | Sequence[Key] | None = None,
        label: Key | None = None,
        num_classes: int | None = None,
        layout: Layout | None = None,
    ) -> None:
        """See `map_style` for the arguments; `shown` names the dataset in messages."""
        self._shown = shown
        if layout is not None and layout not in LAYOUTS:
            raise self._wrong(f"layout: got {layout!r}, allowed: {', '.join(LAYOUTS)}, or null")
        self._items = items = as_items(given, shown)
        self._length = check_length(items, shown)
        number, item = self._first_item()
        try:
            columns = Columns.of(item, sample, label)
        except UnusableSampleError as error:
            raise self._wrong(f"item {number}: {error}") from None
        self._is_of_images = is_image(columns.parts(item)[0])
        raw = self._try(number, form_of(item), columns)
        try:
            chosen = self._choose_layout([sample for sample, _ in raw.values()], layout)
            tried = {each: (arranged(found, chosen), its) for each, (found, its) in raw.items()}
        except UnusableSampleError as error:
            raise self._wrong(str(error)) from None
        self.reading = Reading(columns, chosen)
        self._check_repeatable(tried)
        self.sample_spec = self._sample_spec(tried)
        self.label_spec = self._label_spec(tried)
        self.labels: NDArray[np.int64] | None = None
        self.class_names: tuple[str, ...] | None = None
        if self.label_spec.is_class:
            self.labels = self._unchanged(known_labels(items, columns.label), tried)
            self.class_names = known_class_names(items, columns.label)
        self.is_counted = False
        self.num_classes: int = self._num_classes(num_classes)
        self.validation_ids: Any = getattr(items, "validation_ids", None)
        self.sizes: Any = getattr(items, "sizes", None)
        self.sample_weights: Any = getattr(items, "sample_weights", None)
        own = getattr(items, "fingerprint", None)
        self.fingerprint = own if isinstance(own, str) and own else self._digest(tried)
        self.remarks: tuple[str, ...] = ()
        if not self.label_spec.shape and not self.label_spec.is_class:
            missing = places_without_label(items, columns.label)
            if len(missing):
                self.remarks = (
                    f"{len(missing)} of {self._length} labels are missing (NaN), the first that of item "
                    f"{missing[0]}, and count as broken; classes are whole numbers, so leave out these items",
                )
        self.notes: tuple[str, ...] = ()
        if chosen == "chw" and layout is None:
            self.notes = (
                f"arrays were taken for images with the channels first, and become {self.sample_spec}",
            )

    def __len__(self) -> int:
        return self._length

    def read(self, sample_id: int) -> tuple[RawSample, NDArray[Any]]:
        """The sample and the label of one item."""
        sample, label = _converted(self._items[sample_id], self.reading.columns)
        return arranged(sample, self.reading.layout), label

    def describe(self, sample_id: int) -> str:
        """The type of the dataset and the number of the item."""
        return f"{type(self._items).__name__}[{sample_id}]"

    def _wrong(self, text: str) -> DataError:
        return DataError(f"{self._shown}: {text}")

    def _changing(self, how: str) -> DataError:
        return self._wrong(f"items change their structure: {how}; give all of them the same")

    @property
    def _is_list(self) -> bool:
        """Whether samples are a list in memory: all are tried, so that the largest one is known."""
        return isinstance(self._items, Pair) and self._items.is_list

    @property
    def _to_try(self) -> Sequence[int]:
        return range(self._length) if self._is_list else evenly(self._length, TRIED)

    def _first_item(self) -> tuple[int, Any]:
        """The first item that can be read, and its number; broken ones are no reason to refuse a run."""
        broken: list[str] = []
        for number in self._to_try[:TRIED]:
            try:
                return number, self._items[number]
            except MemoryError:
                raise
            except Exception as error:  # a user's code may raise anything
                broken.append(f"item {number}: {summary(error)}")
        raise self._wrong(
            f"none of the {len(broken)} items that were tried can be read, the first: {broken[0]}"
        )

    def _try(self, first: int, form: str, columns: Columns) -> Tried:
        """Read some items, before their layout; those that cannot be used are left out.

        Args:
            first, form: number and structure of an item that can be read.
            columns: where items have sample and label.

        Raises:
            DataError: if an item has another structure, or none can be used.
        """
        tried: Tried = {}
        broken: list[str] = []
        num_bytes = 0
        for number in self._to_try:
            try:
                item = self._items[number]
                if form_of(item) != form:
                    raise self._changing(f"item {first} is {form}, item {number} is {form_of(item)}")
                tried[number] = _converted(item, columns)
            except (DataError, MemoryError):
                raise
            except Exception as error:  # a user's code may raise anything
                reason = str(error) if isinstance(error, UnusableSampleError) else summary(error)
                broken.append(f"item {number}: {reason}")
                continue
            num_bytes += num_bytes_of(tried[number][0])
            if num_bytes >= TRIED_BYTES and not self._is_list:
                break
        if not tried:
            raise self._wrong(
                f"none of the {len(broken)} items that were tried can be used, the first: {broken[0]}"
            )
        return tried

    def _choose_layout(self, samples: Sequence[RawSample], given: Layout | None) -> Layout:
        if self._is_of_images and given in ("chw", "hw"):
            raise UnusableSampleError(f"layout: got {given}, but Pillow's images need none; leave it out")
        shapes = [sample.shape for sample in samples if isinstance(sample, np.ndarray)]
        if given is not None or self._is_of_images or len({len(shape) for shape in shapes}) != 1:
            return given or "keep"
        return layout_of(shapes)

    def _check_repeatable(self, tried: Tried) -> None:
        """Refuse items that differ from read to read: resumed runs and other ranks would see other data."""
        for number in [*tried][:TRIED_TWICE]:
            if content_of(tried[number]) != content_of(self.read(number)):
                raise self._wrong(unrepeatable(number))

    def _sample_spec(self, tried: Tried) -> SampleSpec | None:
        kinds = {number: _kind_of(sample) for number, (sample, _) in tried.items()}
        self._check_one("the sample", kinds)
        arrays = [sample for sample, _ in tried.values() if isinstance(sample, np.ndarray)]
        if not arrays:
            return None
        lengths = [set(found) for found in zip(*(array.shape for array in arrays), strict=True)]
        shape = tuple(found.pop() if len(found) == 1 else None for found in lengths)
        if self._is_of_images and shape[-1] is None:
            raise self._changing("some images are gray, some have colours (image.convert('RGB'))")
        largest = max(array.nbytes for array in arrays) if len(arrays) == self._length else UNBOUNDED
        return SampleSpec.of(shape, arrays[0].dtype.name, largest)

    def _label_spec(self, tried: Tried) -> LabelSpec:
        self._check_one(
            "the label", {number: f"of shape {label.shape}" for number, (_, label) in tried.items()}
        )
        dtype = np.result_type(*{label.dtype for _, label in tried.values()})
        return LabelSpec(next(iter(tried.values()))[1].shape, dtype.name)

    def _check_one(self, part: str, kinds: Mapping[int, str]) -> None:
        first = next(iter(kinds))
        for number, kind in kinds.items():
            if kind != kinds[first]:
                raise self._changing(
                    f"{part} of item {first} is {kinds[first]}, that of item {number} {kind}"
                )

    def _unchanged(self, labels: NDArray[np.int64] | None, tried: Tried) -> NDArray[np.int64] | None:
        """Known labels, unless a transform gives those of the items that were tried other numbers."""
        if labels is None or any(labels[number] != label for number, (_, label) in tried.items()):
            return None
        return labels

    def _num_classes(self, given: int | None) -> Any:
        own = inherited(self._items, "num_classes") if given is None else given
        if own is not None:
            return own
        if self.class_names is not None:
            return len(self.class_names)
        if self.labels is not None:
            self.is_counted = True
            return max(0, int(self.labels.max())) + 1
        if not self.label_spec.is_class and len(self.label_spec.shape) < 2:
            return (*self.label_spec.shape, 1)[0]
        self._refuse_uncounted_labels()
        raise self._wrong(
            "the dataset does not say how many classes there are, by num_classes or classes; add such an "
            "attribute, or set num_classes of hpcbal.data:map_style (docs/your-own-model-and-data.md)"
        )

    def _refuse_uncounted_labels(self) -> None:
        """Refuse items whose labels could be counted but for a mistake.

        Raises:
            DataError: if sample and label have changed places, or some labels are missing.
        """
        label = self.label_spec
        if label.shape and self.sample_spec is not None and self.sample_spec.shape == ():
            raise self._wrong(
                f"the sample is one number, and the label an array {label.shape} of {label.dtype}, allowed: "
                "the sample first, then the label; have they changed places?"
            )
        missing = places_without_label(self._items, self.reading.columns.label)
        if len(missing):
            raise self._wrong(
                f"{len(missing)} of {self._length} labels are missing (None or NaN), the first that of item "
                f"{missing[0]}; leave these items out, or set num_classes of hpcbal.data:map_style, and they "
                "count as broken"
            )

    def _digest(self, tried: Tried) -> str:
        facts = (self._length, self.reading.columns, str(self.sample_spec), self.label_spec, self.class_names)
        return digest_of(facts, self.labels, {number: content_of(each) for number, each in tried.items()})


def _converted(item: Any, columns: Columns) -> tuple[RawSample, NDArray[Any]]:
    """The sample, before its layout, and the label."""
    sample, label = columns.parts(item)
    return sample_of(sample), label_of(label)


def _kind_of(sample: RawSample) -> str:
    if isinstance(sample, np.ndarray):
        return f"an array of {sample.ndim} axes and type {sample.dtype.name}"
    return "bytes"


def map_style(
    dataset: Any,
    args: Mapping[str, Any] | None = None,
    sample: str | int | Sequence[str | int] | None = None,
    label: str | int | None = None,
    num_classes: int | None = None,
    layout: Literal["chw", "hw", "keep"] | None = None,
) -> MapStyle:
    """Say what a dataset of another library does not show; without these arguments name it in `data.dataset`.

    Args:
        dataset: anything with `len(dataset)` and `dataset[number]`, such as a `torch.utils.data.Dataset` or a
            Hugging Face dataset, a table, or a pair of arrays, tables or columns; or the import path of a
            callable that returns one.
        args: of this callable.
        sample: the sample's key in a dict, or its place in a tuple; several are stacked along a new last
            axis. None: by its usual name, or the first of two.
        label: the same for the label; None: by its usual name, or the second of two.
        num_classes: >= 1; None: as the dataset says.
        layout: `chw`: images with the channels first; `hw`: gray images without an axis of channels; `keep`:
            arrays stay as they are. None: see `layout_of`.

    Raises:
        DataError: if it cannot be read by number, has no items, or they cannot be used.
        InputError, UserCodeError: if the callable cannot be found or imported.
    """
    if isinstance(dataset, str):
        from hpcbal.config.imports import load_object

        dataset = load_object(dataset)(**(args or {}))
    return MapStyle(dataset, sample=sample, label=label, num_classes=num_classes, layout=layout)
