"""Image files in one folder per class, the layout of Caltech-256 and ImageNet."""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path

import numpy as np

from hpcbal.data.content import content_digest
from hpcbal.data.dataset import evenly
from hpcbal.data.datasets.arguments import image_endings, path_of
from hpcbal.data.datasets.index import Arrays, Names, index_of
from hpcbal.data.spec import LabelSpec
from hpcbal.errors import DataError

DEFAULT_EXTENSIONS = ("png", "jpg", "jpeg")
OTHER_EXTENSIONS = (".png", ".jpg", ".jpeg", ".bmp", ".gif", ".tif", ".tiff", ".webp")
"""Ends of names by which files that are left out are known as images."""
DIGEST_SIZES, DIGEST_FILES = 10_000, 64
"""Files whose size, and whose content, is looked at to know a folder again: a parallel file system takes
a tenth of a millisecond and more for each."""

WORTH_KEEPING = 10_000
"""Files from which on a list of them is kept; fewer are listed in less than a second."""
SETTLED_NS = 2 * 10**9
"""Age of the last change of a folder from which on another change would have another time: some file systems
count whole seconds."""

OF_TRAINING = ("train", "training")
OF_VALIDATION = ("val", "valid", "validation", "test")


class ImageFolder:
    """Files `<path>/<class>/<file>`; classes and files are numbered in the order of their names.

    Attributes:
        class_names: folder names; a label is an index into them.
        num_classes: number of folders.
        sample_spec: None: samples are encoded images, so the preprocessing starts with `decode`.
        label_spec: one class.
        labels: the class of each file, shape (num_samples,).
        fingerprint: digest of the relative paths.
        content_fingerprint: digest of the sizes of at most `DIGEST_SIZES` files, and of the first 64 KiB of
            at most `DIGEST_FILES`.
        remarks: whether the index was damaged, or cannot be kept.
        notes: which folders and images inside of classes are left out.
    """

    sample_spec = None

    def __init__(
        self, path: Path, class_names: Sequence[str], index: Arrays, remarks: tuple[str, ...] = ()
    ) -> None:
        """Args: index: what `_listing` returns."""
        self._path = path
        self.class_names = tuple(class_names)
        self.num_classes = len(class_names)
        self.label_spec = LabelSpec()
        self.labels = np.repeat(np.arange(self.num_classes), index["num_files"])
        self.fingerprint = index["fingerprint"].tobytes().hex()
        self.remarks = remarks
        left_out = index["left_out"].tobytes().decode() if "left_out" in index else ""  # older ones lack it
        self.notes = (left_out,) if left_out else ()
        self._names = Names(index["joined"], index["ends"])

    def __len__(self) -> int:
        return len(self._names)

    @cached_property
    def content_fingerprint(self) -> str:
        of_content, found = set(evenly(len(self), DIGEST_FILES)), {}
        for sample_id in {*evenly(len(self), DIGEST_SIZES), *of_content}:
            path = os.path.join(self._path, self.describe(sample_id))
            try:
                found[sample_id] = b"%d " % os.stat(path).st_size
                if sample_id in of_content:
                    with open(path, "rb") as file:
                        found[sample_id] += file.read(2**16)
            except OSError:  # a broken sample, which a run may have some of
                found[sample_id] = b"cannot be read"
        return content_digest(found)

    def read(self, sample_id: int) -> tuple[bytes, int]:
        """The bytes of one file, and its class."""
        with open(os.path.join(self._path, self.describe(sample_id)), "rb") as file:
            return file.read(), int(self.labels[sample_id])

    def describe(self, sample_id: int) -> str:
        """The file's path inside the dataset."""
        return f"{self.class_names[self.labels[sample_id]]}/{self._names[sample_id]}"


def image_folder(
    path: str, extensions: Sequence[str] = DEFAULT_EXTENSIONS, index: str | None = None
) -> ImageFolder:
    """Find the images in `path`; opens none of them.

    The names of many files are kept in an index until a class gets or loses a file, which changes the time of
    its folder.

    Args:
        path: directory with one folder per class; a relative path starts at the current directory.
        extensions: file extensions of images, without dot, in any case. Other files, hidden files and folders
            (".DS_Store", "._x.jpg"), and folders inside a class are left out.
        index: file that keeps the names of the files; None: a hidden file in `path`, for `WORTH_KEEPING`
            files or more.

    Raises:
        DataError: if the directory does not exist, has no classes, or a class has no images.
    """
    endings = image_endings(extensions, "image_folder")
    root = path_of("image_folder", "path", path)
    if not root.is_dir():
        where = f" (from {Path.cwd()})" if not root.is_absolute() else ""
        raise DataError(
            f"image_folder: {root}{where} is not a directory; set data.args.path to the directory that has "
            "one folder per class"
        )
    class_names = sorted(entry.name for entry in _scan(root) if entry.is_dir())
    if not class_names:
        raise DataError(f"image_folder: {root} holds no folders; expected one per class, with its images")
    folded = {name.lower(): name for name in class_names}
    split = [folded[name] for name in OF_TRAINING if name in folded]
    held_out = [folded[name] for name in OF_VALIDATION if name in folded]
    if split and held_out and len(class_names) <= 4:  # nobody's classes
        raise DataError(
            f"image_folder: {root} holds {', '.join(class_names)}, which are parts of the data, not "
            f"classes; set data.args.path to {root / split[0]}, and data.validation: "
            f"{{args: {{path: {root / held_out[0]}}}}}"
        )
    now_ns = time.time_ns()
    changed_ns = [_changed_ns(root / name) for name in class_names]
    is_settled = all(abs(now_ns - each) > SETTLED_NS for each in changed_ns)
    found, remarks = index_of(
        "image_folder",
        index,
        root,
        endings,
        (class_names, changed_ns),
        lambda: _listing(root, class_names, endings),
        lambda found: is_settled and (index is not None or len(found["ends"]) >= WORTH_KEEPING),
    )
    return ImageFolder(root, class_names, found, remarks)


def _listing(root: Path, class_names: Sequence[str], endings: tuple[str, ...]) -> Arrays:
    """List all classes.

    Returns: the names of all files, as in `Names`; `num_files` of each class; the `fingerprint`; `left_out`,
        a sentence about what classes hold besides, in UTF-8.
    """
    found = [_contents(root / name, endings) for name in class_names]
    files = [names for names, _ in found]
    empty = [name for name, names in zip(class_names, files, strict=True) if not names]
    outer = [
        name
        for name, (_, rest) in zip(class_names, found, strict=True)
        if any(each.endswith("/") for each in rest)
    ]
    if len(empty) == len(class_names) and len(outer) == 1:  # as in many archives
        inside = root / outer[0]
        raise DataError(
            f"image_folder: {root} holds no class with images, and {inside} holds folders; if these are the "
            f"classes, or train and val, set data.args.path to {inside}"
        )
    if empty:
        shown = ", ".join(empty[:5]) + (f" and {len(empty) - 5} more" if len(empty) > 5 else "")
        raise DataError(
            f"image_folder: no {', '.join(endings)} file in {shown} of {root}; remove the folder, or add its "
            "file type to data.args.extensions"
        )
    left_out = [f"{name}/{each}" for name, (_, rest) in zip(class_names, found, strict=True) for each in rest]
    digest = hashlib.sha256()
    for class_name, names in zip(class_names, files, strict=True):
        digest.update(b"".join(os.fsencode(f"{class_name}/{name}") + b"\0" for name in names))
    all_names = Names.of(files)
    return {
        "joined": all_names.joined,
        "ends": all_names.ends,
        "num_files": np.array([len(names) for names in files]),
        "fingerprint": np.frombuffer(digest.digest(), np.uint8),
        "left_out": np.frombuffer(_told(left_out), np.uint8),
    }


def _told(left_out: Sequence[str]) -> bytes:
    """Return a sentence about folders and images inside of classes that are left out; empty if none are."""
    if not left_out:
        return b""
    shown = ", ".join(left_out[:3]) + (f" and {len(left_out) - 3} more" if len(left_out) > 3 else "")
    are = "is" if len(left_out) == 1 else "are"
    return (
        f"image_folder: {shown} {are} left out: images lie in the folder of their class itself, and "
        "data.args.extensions lists their types"
    ).encode(errors="replace")


def _changed_ns(folder: Path) -> int:
    try:
        return os.stat(folder).st_mtime_ns
    except OSError as error:
        raise DataError(f"image_folder: {folder} cannot be read: {error.strerror}") from error


def _contents(directory: Path, endings: tuple[str, ...]) -> tuple[tuple[str, ...], list[str]]:
    """Return the names of a class's files, and of folders and other images in it, which are left out."""
    names, rest = list[str](), list[str]()
    for entry in _scan(directory):
        name = entry.name.lower()
        if entry.is_dir():
            rest.append(f"{entry.name}/")
        elif name.endswith(endings):
            names.append(entry.name)
        elif name.endswith(OTHER_EXTENSIONS):
            rest.append(entry.name)
    return tuple(sorted(names)), sorted(rest)


def _scan(directory: Path) -> list[os.DirEntry[str]]:
    try:
        with os.scandir(directory) as entries:
            return [entry for entry in entries if not entry.name.startswith(".")]
    except OSError as error:
        raise DataError(f"image_folder: {directory} cannot be listed: {error.strerror}") from error
