"""Samples on which trained DNNs are evaluated, and those without labels that they predict."""

from __future__ import annotations

import contextlib
import hashlib
import os
import zipfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from numpy.typing import NDArray

from hpcbal import env
from hpcbal.config.schema.section import is_import_path
from hpcbal.data.dataset import Dataset, RawSample, UnusableSampleError, check_length, evenly, kind_of
from hpcbal.data.datasets.arguments import image_endings
from hpcbal.data.datasets.hdf5 import Hdf5Dataset
from hpcbal.data.datasets.hdf5_reading import only_member
from hpcbal.data.datasets.image_folder import DEFAULT_EXTENSIONS
from hpcbal.data.foreign import Pair, as_items, by_place, is_table
from hpcbal.data.held_out import of_same_kind, open_dataset, open_held_out, open_items
from hpcbal.data.items import Columns, Layout, Reading, arranged, sample_of
from hpcbal.data.pipeline import build_operations
from hpcbal.data.source import PreprocessedSamples
from hpcbal.data.spec import SampleSpec
from hpcbal.errors import DataError
from hpcbal.user_code import is_ctrl_c, summary

if TYPE_CHECKING:
    from hpcbal.config import EnsembleConfig

TEST: Final = "test"
VALIDATION: Final = "validation"


@dataclass(frozen=True, slots=True)
class SampleSet:
    """Samples of a source, in the order in which they are evaluated.

    Attributes:
        name: what they are, for people.
        source: reads them.
        ids: their ids, shape (n,), n >= 1.
        has_labels: whether the labels of the samples mean anything.
    """

    name: str
    source: PreprocessedSamples
    ids: NDArray[np.int64]
    has_labels: bool = True


def open_sample_set(
    config: EnsembleConfig,
    trained: PreprocessedSamples,
    wanted: str,
    args: Mapping[str, Any] = MappingProxyType({}),
    shown: tuple[str, str] = ("--data", "--data-args"),
    *,
    has_labels: bool = True,
) -> SampleSet:
    """Open the samples to evaluate; they are preprocessed like validation samples.

    Args:
        config: of the run that has trained the DNNs.
        trained: the samples of that run.
        wanted: `test`, `validation`, or the import path of a dataset that is called with `args`; without
            labels also a file or a folder, see `open_unlabelled`.
        shown: names of `wanted` and `args`, for messages.
        has_labels: whether the samples have labels; those of the run always do.

    Raises:
        DataError: if there are none, the dataset cannot be opened, or its samples are of another kind.
        InputError: if nothing exists at the import path.
        UserCodeError: if a dataset's module or callable raises.
    """
    if wanted == VALIDATION:
        if not trained.num_validation:
            raise DataError("the run has no validation samples: data.validation_fraction is 0")
        return SampleSet("the validation set", trained, trained.validation_ids)
    if wanted == TEST and config.data.test is None:
        if not len(trained.test_ids):
            raise DataError(
                f"{shown[0]}: the run has no test samples, allowed: validation, or the import path of a "
                "dataset; or name one in data.test and run 'hpcbal run' again"
            )
        return SampleSet("data.test_fraction", trained, trained.test_ids)
    if wanted == TEST:
        return whole_set("data.test", open_held_out(config, TEST, trained.dataset), config)
    if not has_labels:
        unlabelled = open_unlabelled(wanted, env.expanded(args, shown[1]), trained.dataset, shown[0])
        return replace(whole_set(wanted, unlabelled, config), has_labels=False)
    dataset = open_dataset(wanted, env.expanded(args, shown[1]), shown[0])
    dataset = of_same_kind(dataset, trained.dataset, f"{shown[0]} {wanted}")
    return whole_set(wanted, dataset, config)


def whole_set(name: str, dataset: Dataset, config: EnsembleConfig) -> SampleSet:
    """Return all samples of a dataset that is not part of the run, preprocessed like validation samples."""
    source = PreprocessedSamples(
        dataset,
        build_operations([(step.name, step.args) for step in config.preprocessing]),
        seed=config.seed,
        validation_fraction=0.0,
        max_sample_bytes=config.dataplane.max_sample_bytes,
        on_device=config.dataplane.on_device,
    )
    return SampleSet(name, source, np.arange(len(dataset)))  # all, even if it declares a split


_ARRAYS = (".npy", ".npz")
_HDF5 = (".h5", ".hdf5")


def open_unlabelled(
    wanted: str, args: Mapping[str, Any], trained: Dataset, option: str = "--data"
) -> Dataset:
    """Return samples without labels as a dataset of the kind that a run was trained on.

    Args:
        wanted: a folder of images, an image, an HDF5 file, or one of NumPy; or the import path of a callable
            that returns a dataset, or samples as `GivenSamples` takes them, whose labels are not looked at.
        args: of a folder `extensions`, of an HDF5 file `images`, both as in `data.args`; of the callable.
        trained: the dataset of the run.
        option: what names `wanted`, for messages.

    Raises:
        DataError: if they cannot be opened, or are of another kind.
        InputError: if nothing exists at the import path.
        UserCodeError: if the callable raises.
    """
    if is_import_path(wanted):
        found = open_items(wanted, args, option)
        if hasattr(found, "read") and hasattr(found, "label_spec"):
            return of_same_kind(found, trained, f"{option} {wanted}")
        return GivenSamples(found, trained, option)
    if not wanted:
        raise DataError(f"{option}: got '', allowed: a folder, a file, or package.module:callable")
    path = Path(os.path.expanduser(wanted))
    allowed = "extensions" if path.is_dir() else "images" if path.suffix in _HDF5 else ""
    if set(args) - {allowed}:
        shown = ", ".join(args)
        raise DataError(f"{option}-args: got {shown}, allowed for {wanted}: {allowed or 'nothing'}")
    if path.is_dir():
        return GivenSamples(
            ImageFiles.below(path, args.get("extensions", DEFAULT_EXTENSIONS)), trained, option
        )
    if path.suffix in _HDF5:
        images = args.get("images") or only_member(path)
        return GivenSamples(Rows(Hdf5Dataset(path, images, None, None)), trained, option)
    if path.suffix in _ARRAYS:
        return GivenSamples(Arrays(path), trained, option)
    if path.suffix.lower() in image_endings(DEFAULT_EXTENSIONS, option):
        return GivenSamples(ImageFiles(path.parent, [path.name]), trained, option)
    raise DataError(
        f"{option}: got {wanted}, allowed: a folder of images, an image, a file that ends in "
        f"{', '.join((*_HDF5, *_ARRAYS))}, or package.module:callable with --no-labels"
    )


class ImageFiles:
    """Encoded images in files, in the order of their paths.

    Args:
        root: the folder.
        names: paths below it.
    """

    def __init__(self, root: Path, names: list[str]) -> None:
        self._root, self._names = root, names
        self.fingerprint = hashlib.sha256("\0".join(names).encode(errors="surrogateescape")).hexdigest()

    @classmethod
    def below(cls, root: Path, extensions: Any) -> ImageFiles:
        """Find the images in a folder and in its folders; hidden ones are left out.

        Links to folders are followed, and each folder counts once: links may lead in a circle.

        Raises:
            DataError: if there are none, or a folder cannot be listed.
        """

        def refuse(error: OSError) -> None:
            raise DataError(f"--data: {error.filename} cannot be listed: {error.strerror}") from error

        endings, names = image_endings(extensions, "--data-args"), list[str]()
        seen, links = set[tuple[int, int]](), [os.fspath(root)]
        for link in links:  # grows: links come after the folders beside them, so these keep their own names
            for folder, folders, files in os.walk(link, onerror=refuse):
                status = os.stat(folder)
                if (status.st_dev, status.st_ino) in seen:
                    folders.clear()
                    continue
                seen.add((status.st_dev, status.st_ino))
                folders[:] = sorted(each for each in folders if not each.startswith("."))
                links += [path for each in folders if os.path.islink(path := os.path.join(folder, each))]
                found = [
                    each for each in files if each.lower().endswith(endings) and not each.startswith(".")
                ]
                names += [os.path.relpath(os.path.join(folder, each), root) for each in found]
        if not names:
            raise DataError(
                f"--data: no {', '.join(endings)} file in {root}; for others, give "
                '--data-args \'{"extensions": ["tif"]}\''
            )
        return cls(root, sorted(names))

    def __len__(self) -> int:
        return len(self._names)

    def __getitem__(self, number: int) -> bytes:
        return (self._root / self._names[number]).read_bytes()

    def describe(self, number: int) -> str:
        """The path below the folder."""
        return self._names[number]


class Rows:
    """The samples of a dataset, without its labels."""

    def __init__(self, dataset: Dataset) -> None:
        self._dataset = dataset
        self.describe = dataset.describe
        self.fingerprint = str(getattr(dataset, "fingerprint", ""))

    def __len__(self) -> int:
        return len(self._dataset)

    def __getitem__(self, number: int) -> Any:
        return self._dataset.read(number)[0]


class Arrays:
    """The rows of an array in a file of NumPy; one in a `.npy` file stays on disk.

    Args:
        path: of a file `.npy`, or of one `.npz` that holds one array, or the samples as `x`.

    Raises:
        DataError: if it cannot be read.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        try:
            found = np.load(path, mmap_mode="r", allow_pickle=False)
            if not isinstance(found, np.ndarray):
                with found:
                    names = found.files
                    if len(names) != 1 and "x" not in names:
                        raise DataError(
                            f"--data: {path} holds {', '.join(names)}, allowed: one array, or one named x"
                        )
                    found = found["x" if "x" in names else names[0]]
        except (OSError, ValueError, EOFError, zipfile.BadZipFile) as error:
            raise DataError(f"--data: {path} cannot be read as a file of NumPy: {error}") from error
        if not found.ndim:
            raise DataError(f"--data: {path} holds one number, allowed: an array with a row for each sample")
        self._rows: NDArray[Any] = found
        self.fingerprint = f"{found.shape} {found.dtype}"

    def __len__(self) -> int:
        return len(self._rows)

    def __getitem__(self, number: int) -> NDArray[Any]:
        return np.array(self._rows[number])

    def describe(self, number: int) -> str:
        """File and row."""
        return f"{self._path}[{number}]"


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
