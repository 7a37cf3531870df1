"""Image files in one folder per class, the layout of Caltech-256 and ImageNet."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from hpcbal.data.dataset import evenly
from hpcbal.data.spec import LabelSpec
from hpcbal.errors import DataError

DEFAULT_EXTENSIONS = ("png", "jpg", "jpeg")
DIGEST_SIZES, DIGEST_FILES = 10_000, 64
"""Files whose size, and whose content, is looked at to know a folder again: a parallel file system takes
a tenth of a millisecond and more for each."""

_OF_TRAINING = ("train", "training")
_OF_VALIDATION = ("val", "valid", "validation", "test")


class ImageFolder:
    """Files `<path>/<class>/<file>`; classes and files are numbered in the order of their names.

    Attributes:
        class_names: folder names; a label is an index into them.
        num_classes: number of folders.
        sample_spec: None: samples are encoded images, so the preprocessing starts with `decode`.
        label_spec: one class.
        fingerprint: digest of the relative paths.
        content_fingerprint: digest of the sizes of at most `DIGEST_SIZES` files, and of the first 64 KiB of
            at most `DIGEST_FILES`.
    """

    sample_spec = None

    def __init__(self, path: Path, class_names: Sequence[str], files: Sequence[tuple[str, ...]]) -> None:
        """Args: files: per class, the names of its files."""
        self._path = path
        self.class_names = tuple(class_names)
        self.num_classes = len(class_names)
        self.label_spec = LabelSpec()
        self._names = [name for names in files for name in names]
        self._labels = [label for label, names in enumerate(files) for _ in names]
        digest = hashlib.sha256()
        for sample_id in range(len(self)):
            digest.update(os.fsencode(self.describe(sample_id)) + b"\0")
        self.fingerprint = digest.hexdigest()

    def __len__(self) -> int:
        return len(self._names)

    @cached_property
    def content_fingerprint(self) -> str:
        digest = hashlib.sha256()
        of_content = set(evenly(len(self), DIGEST_FILES))
        for sample_id in sorted({*evenly(len(self), DIGEST_SIZES), *of_content}):
            path = os.path.join(self._path, self.describe(sample_id))
            try:
                digest.update(f"{sample_id} {os.stat(path).st_size} ".encode())
                if sample_id in of_content:
                    with open(path, "rb") as file:
                        digest.update(file.read(2**16))
            except OSError:  # a broken sample, which a run may have some of
                digest.update(b"cannot be read ")
        return digest.hexdigest()[:32]

    @property
    def labels(self) -> NDArray[np.int64]:
        """The class of each file, shape (num_samples,)."""
        return np.array(self._labels, np.int64)

    def read(self, sample_id: int) -> tuple[bytes, int]:
        """The bytes of one file, and its class."""
        with open(os.path.join(self._path, self.describe(sample_id)), "rb") as file:
            return file.read(), self._labels[sample_id]

    def describe(self, sample_id: int) -> str:
        """The file's path inside the dataset."""
        return f"{self.class_names[self._labels[sample_id]]}/{self._names[sample_id]}"


def image_folder(path: str, extensions: Sequence[str] = DEFAULT_EXTENSIONS) -> ImageFolder:
    """Find the images in `path`; opens none of them.

    Args:
        path: directory with one folder per class; a relative path starts at the current directory.
        extensions: file extensions of images, without dot, in any case. Other files, hidden files and folders
            (".DS_Store", "._x.jpg"), and folders inside a class are left out.

    Raises:
        DataError: if the directory does not exist, has no classes, or a class has no images.
    """
    endings = image_endings(extensions, "image_folder")
    root = Path(path).expanduser()
    if not root.is_dir():
        where = f" (from {Path.cwd()})" if not root.is_absolute() else ""
        raise DataError(
            f"image_folder: {root}{where} is not a directory; set data.args.path to the directory that has "
            "one folder per class"
        )
    class_names = sorted(entry.name for entry in _scan(root) if entry.is_dir())
    if not class_names:
        raise DataError(f"image_folder: {root} holds no folders; expected one per class, with its images")
    files = [_image_names(root / name, endings) for name in class_names]
    folded = {name.lower(): name for name in class_names}
    split = [folded[name] for name in _OF_TRAINING if name in folded]
    held_out = [folded[name] for name in _OF_VALIDATION if name in folded]
    if split and held_out and len(class_names) <= 4:  # nobody's classes
        raise DataError(
            f"image_folder: {root} holds {', '.join(class_names)}, which are parts of the data, not "
            f"classes; set data.args.path to {root / split[0]}, and data.validation: "
            f"{{args: {{path: {root / held_out[0]}}}}}"
        )
    empty = [name for name, names in zip(class_names, files, strict=True) if not names]
    if empty:
        shown = ", ".join(empty[:5]) + (f" and {len(empty) - 5} more" if len(empty) > 5 else "")
        raise DataError(
            f"image_folder: no {', '.join(endings)} file in {shown} of {root}; remove the folder, or add its "
            "file type to data.args.extensions"
        )
    return ImageFolder(root, class_names, files)


def image_endings(extensions: Sequence[str], dataset: str) -> tuple[str, ...]:
    """File extensions in lower case, each with its dot.

    Args:
        dataset: whose argument they are, for the message.

    Raises:
        DataError: if they are not a list of texts.
    """
    if isinstance(extensions, str) or not extensions or not all(isinstance(e, str) for e in extensions):
        raise DataError(
            f"{dataset}: data.args.extensions: got {extensions!r}, allowed: a list such as [png, jpg]"
        )
    return tuple("." + extension.lower().lstrip(".") for extension in extensions)


def _image_names(directory: Path, endings: tuple[str, ...]) -> tuple[str, ...]:
    entries = _scan(directory)
    return tuple(sorted(e.name for e in entries if e.name.lower().endswith(endings) and not e.is_dir()))


def _scan(directory: Path) -> list[os.DirEntry[str]]:
    try:
        with os.scandir(directory) as entries:
            return [entry for entry in entries if not entry.name.startswith(".")]
    except OSError as error:
        raise DataError(f"image_folder: {directory} cannot be listed: {error.strerror}") from error
