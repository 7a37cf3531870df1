"""Samples without labels to predict: a folder of images, a file of arrays, or what a user's code returns."""

from __future__ import annotations

import hashlib
import os
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hpcbal.config.schema.section import is_import_path
from hpcbal.data.dataset import Dataset
from hpcbal.data.datasets.arguments import image_endings
from hpcbal.data.datasets.hdf5 import Hdf5Dataset
from hpcbal.data.datasets.hdf5_reading import only_member
from hpcbal.data.datasets.image_folder import DEFAULT_EXTENSIONS
from hpcbal.data.given_samples import GivenSamples
from hpcbal.data.held_out import of_same_kind, open_items
from hpcbal.errors import DataError

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
        images = args.get("images") or only_member(path, "images")
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
