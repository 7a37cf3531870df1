"""Samples to predict, in whatever form they come: read as the run reads those of its own dataset."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hpcbal.data.dataset import Dataset, RawSample, UnusableSampleError, check_length, evenly, kind_of
from hpcbal.data.foreign import Pair, as_items
from hpcbal.data.items import Columns, Layout, Reading, arranged, sample_of
from hpcbal.data.spec import SampleSpec
from hpcbal.data.tables import by_place, is_table
from hpcbal.errors import DataError
from hpcbal.user_code import is_ctrl_c, summary

_TRIED = 8
"""Items at most that are read to find out their form."""


class GivenSamples:
    """Samples without labels as a dataset; all get the label 0.

    Items are samples, or have samples and labels, as those of a dataset of another library have; labels are
    not looked at.

    Attributes: as `Dataset` describes them.

    Args:
        given: arrays, tensors or images in a sequence or in one array, a table, a pair of samples and labels,
            or a dataset of another library.
        trained: the dataset whose samples they are like.
        shown: what names them, for messages.

    Raises:
        DataError: if there are none, they cannot be read by number, or none of those that are tried is like
            those of the run.
    """

    def __init__(self, given: Any, trained: Dataset, shown: str = "samples") -> None:
        self._shown = shown
        self.num_classes = int(trained.num_classes)
        if isinstance(trained.sample_spec, Mapping) or trained.label_spec.parts:
            raise DataError(
                f"{shown}: the run's samples have several named arrays or labels, allowed for these: test, "
                "validation, or a dataset or the import path of one"
            )
        self.sample_spec, self.label_spec = trained.sample_spec, trained.label_spec
        self._label = np.zeros(self.label_spec.shape, self.label_spec.dtype)
        reading: Reading | None = getattr(trained, "reading", None)
        self._items = _items_of(given, reading, shown)
        self._length = check_length(self._items, shown)
        self._name_of = getattr(given, "describe", "given sample {}".format)
        self.fingerprint = str(getattr(given, "fingerprint", ""))
        self._columns, self._layout = self._form(given, reading)

    def __len__(self) -> int:
        return self._length

    def read(self, sample_id: int) -> tuple[RawSample, NDArray[Any]]:
        """Return the sample, in the type of the trained ones where no kind of number changes.

        Raises:
            UnusableSampleError: if it is no array, or the type cannot hold its whole numbers.
        """
        item = self._items[sample_id]
        part = item if self._columns is None else self._columns.sample_part(item)
        return _cast(arranged(sample_of(part), self._layout), self.sample_spec), self._label

    def describe(self, sample_id: int) -> str:
        """Return which of the given samples it is, as what was given describes it."""
        return str(self._name_of(sample_id))

    def _form(self, given: Any, reading: Reading | None) -> tuple[Columns | None, Layout]:
        """Where an item has its sample (None: it is one), and the layout of this."""
        why = unread = ""
        for number in evenly(self._length, _TRIED):
            try:
                item = self._items[number]
            except Exception as error:  # a user's code may raise anything
                if is_ctrl_c(error):
                    raise
                unread = unread or f"item {number}: {summary(error)}"
                continue
            for columns, layout in _forms(item, reading):
                if self._fits(item, columns, layout):
                    return columns, layout
            why = why or _shown(item, reading)
        if not why:
            raise DataError(
                f"{self._shown}: none of the items that were tried can be read, the first: {unread}"
            )
        is_one = any(self._fits(given, None, layout) for _, layout in _forms(given, reading))
        raise DataError(
            f"{self._shown}: got {why}, allowed: {_wanted(self.sample_spec, reading)}, as in data.dataset, "
            f"or a dataset of such samples{'; put a single one into a list' if is_one else ''}"
        )

    def _fits(self, item: Any, columns: Columns | None, layout: Layout) -> bool:
        """Whether the sample has the shape of those of the run, and numbers of their kind."""
        try:
            raw = arranged(sample_of(item if columns is None else columns.sample_part(item)), layout)
        except UnusableSampleError:
            return False
        if self.sample_spec is None:
            return not isinstance(raw, np.ndarray) or (raw.dtype == np.uint8 and raw.ndim == 1)
        if not isinstance(raw, np.ndarray) or not np.can_cast(raw.dtype, self.sample_spec.dtype, "same_kind"):
            return False
        return self.sample_spec.admits(np.broadcast_to(np.zeros((), self.sample_spec.dtype), raw.shape))


def _items_of(given: Any, reading: Reading | None, shown: str) -> Any:
    """An object with one item for each sample."""
    if not (hasattr(given, "__getitem__") or hasattr(given, "__iter__")):
        raise DataError(
            f"{shown}: got {kind_of(given)}, allowed: samples in an array or a list, a dataset, test, "
            "validation, or the import path of a dataset"
        )
    by_name = reading is not None and reading.columns != Columns(0, 1)
    try:
        given = given if by_name and is_table(given) else by_place(given)
    except UnusableSampleError as error:
        raise DataError(f"{shown}: {error}") from None
    items = as_items(given, shown)
    return items.tensors[0] if isinstance(items, Pair) else items


def _forms(item: Any, reading: Reading | None) -> Iterator[tuple[Columns | None, Layout]]:
    """Return what an item may be, the likeliest first: as the run reads it, or already arranged."""
    places: list[Columns | None] = []
    if isinstance(item, tuple | Mapping):
        places += [] if reading is None else [reading.columns]
        with contextlib.suppress(UnusableSampleError):  # such as a tuple of numbers, which is a sample
            places.append(Columns.of(item, None, None))
    layouts: list[Layout] = ["keep"] if reading is None else [reading.layout, "keep"]
    yield from ((columns, layout) for columns in (*places, None) for layout in layouts)


def _shown(item: Any, reading: Reading | None) -> str:
    """Return what the sample of an item is, as far as it has one."""
    for columns, _ in _forms(item, reading):
        with contextlib.suppress(UnusableSampleError):
            sample = sample_of(item if columns is None else columns.sample_part(item))
            if isinstance(sample, bytes | bytearray | memoryview):
                return "encoded images, such as the files of a folder"
            return kind_of(sample)
    return kind_of(item)


def _wanted(spec: SampleSpec | None, reading: Reading | None) -> str:
    """Return what samples of the run are, in the layout in which its dataset holds them."""
    if spec is None:
        return "encoded images as bytes"
    lengths, layout = ["any" if length is None else str(length) for length in spec.shape], "keep"
    if reading is not None:
        layout = reading.layout
    if layout == "chw":
        lengths = [lengths[-1], *lengths[:-1]]
    elif layout == "hw":
        lengths = lengths[:-1]
    return f"arrays of shape ({', '.join(lengths)}) and type {spec.dtype}"


def _cast(raw: RawSample, spec: SampleSpec | None) -> RawSample:
    if spec is None or not isinstance(raw, np.ndarray):
        return raw
    dtype = np.dtype(spec.dtype)
    if not np.can_cast(raw.dtype, dtype, "same_kind"):
        return raw
    cast = raw.astype(dtype)
    if dtype.kind in "iu" and (cast != raw).any():
        raise UnusableSampleError(f"got numbers from {raw.min()} to {raw.max()}, allowed: those of {dtype}")
    return cast
