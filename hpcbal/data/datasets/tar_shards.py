"""Encoded images in tar archives, as WebDataset writes them: `key.jpg` and `key.cls` side by side.

Samples are read at random, by their places in the archives. An index of these places is made at the first
opening and kept in a file, until an archive changes.
"""

from __future__ import annotations

import glob
import hashlib
import os
import tarfile
import tempfile
import zipfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields
from functools import cached_property
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from hpcbal.data.dataset import UnusableSampleError, evenly
from hpcbal.data.datasets.image_folder import DEFAULT_EXTENSIONS, DIGEST_FILES, image_endings
from hpcbal.data.spec import LabelSpec
from hpcbal.errors import DataError

FORMAT = 1
"""Of the file of an index; another one has another name."""
MOST_OPEN = 32
"""Archives that a process holds open."""
_MOST_DIGITS = 18


@dataclass(frozen=True)
class Index:
    """Where the samples of some archives are.

    Attributes:
        question: digest of the names of the archives and of the extensions.
        sizes, changed_ns: of each archive, bytes and the time of its last change, shape (num_archives,).
        archive: number of the archive of each sample, shape (num_samples,).
        first, length: place and size of its image, bytes.
        label: its class.
        keys: names of all samples one after the other, UTF-8.
        key_end: where each name ends in `keys`.
    """

    question: NDArray[np.uint8]
    sizes: NDArray[np.int64]
    changed_ns: NDArray[np.int64]
    archive: NDArray[np.int64]
    first: NDArray[np.int64]
    length: NDArray[np.int64]
    label: NDArray[np.int64]
    keys: NDArray[np.uint8]
    key_end: NDArray[np.int64]

    def key(self, sample_id: int) -> str:
        """The name of a sample."""
        start = int(self.key_end[sample_id - 1]) if sample_id else 0
        return self.keys[start : self.key_end[sample_id]].tobytes().decode(errors="surrogateescape")

    def answers(self, question: NDArray[np.uint8], stamps: NDArray[np.int64]) -> bool:
        """Whether the index is whole, and of such archives and members with these stamps."""
        of_samples = (self.archive, self.first, self.length, self.label, self.key_end)
        return (
            np.array_equal(self.question, question)
            and np.array_equal(self.sizes, stamps[:, 0])
            and np.array_equal(self.changed_ns, stamps[:, 1])
            and {each.shape for each in of_samples} == {(self.key_end.size,)}
            and self.keys.shape == tuple(self.key_end[-1:])
        )


class TarShards:
    """Samples of tar archives, in the order of the archives' names and of their places.

    Attributes:
        num_classes: of the labels, or of the names.
        class_names: if they are given.
        sample_spec: None: samples are encoded images, so the preprocessing starts with `decode`.
        label_spec: one class.
        labels: the class of each sample, shape (num_samples,).
        fingerprint: digest of the names of archives and samples, of the labels and of the sizes of images.
        content_fingerprint: digest of the first 64 KiB of at most `DIGEST_FILES` images.
        is_counted: whether `num_classes` is only the largest label + 1.
        remarks: whether the index could not be kept.
    """

    sample_spec = None

    def __init__(
        self,
        paths: Sequence[Path],
        index: Index,
        num_classes: int,
        class_names: Sequence[str] | None,
        remark: str,
        *,
        is_counted: bool,
    ) -> None:
        self._paths, self._index = tuple(paths), index
        self.num_classes = num_classes
        if class_names is not None:
            self.class_names = tuple(class_names)
        self.label_spec = LabelSpec()
        self.labels = index.label
        self.remarks = (remark,) if remark else ()
        digest = hashlib.sha256("\0".join(path.name for path in paths).encode(errors="surrogateescape"))
        for numbers in (index.archive, index.length, index.label, index.keys, index.key_end):
            digest.update(numbers.tobytes())
        self.fingerprint = digest.hexdigest()
        self.is_counted = is_counted
        self._open: dict[int, int] = {}  # descriptors of archives, the one used last at the end

    def __len__(self) -> int:
        return len(self.labels)

    @cached_property
    def content_fingerprint(self) -> str:
        digest = hashlib.sha256()
        for sample_id in sorted(evenly(len(self), DIGEST_FILES)):
            try:
                digest.update(self._image(sample_id)[: 2**16])
            except (OSError, UnusableSampleError):  # a broken sample, which a run may have some of
                digest.update(b"cannot be read ")
        return digest.hexdigest()[:32]

    def read(self, sample_id: int) -> tuple[bytes, int]:
        """The bytes of one image, and its class."""
        return self._image(sample_id), int(self.labels[sample_id])

    def describe(self, sample_id: int) -> str:
        """The archive, and the sample's name in it."""
        return f"{self._paths[self._index.archive[sample_id]].name}: {self._index.key(sample_id)}"

    def _image(self, sample_id: int) -> bytes:
        index, archive = self._index, int(self._index.archive[sample_id])
        if archive not in self._open:
            if len(self._open) == MOST_OPEN:
                os.close(self._open.pop(next(iter(self._open))))
            self._open[archive] = os.open(self._paths[archive], os.O_RDONLY | os.O_CLOEXEC)
        descriptor = self._open[archive] = self._open.pop(archive)
        length = int(index.length[sample_id])
        content = os.pread(descriptor, length, int(index.first[sample_id]))
        stat = os.fstat(descriptor)
        if (stat.st_size, stat.st_mtime_ns) != (index.sizes[archive], index.changed_ns[archive]):
            raise UnusableSampleError(
                f"{self._paths[archive].name} has changed since the run began; restore it, or start again"
            )
        return content


def tar_shards(
    path: str,
    extensions: Sequence[str] = DEFAULT_EXTENSIONS,
    label: str = "cls",
    num_classes: int | None = None,
    class_names: Sequence[str] | None = None,
    index: str | None = None,
) -> TarShards:
    """Open the samples of tar archives; reads all archives once if their index is missing or of others.

    Args:
        path: a tar archive, a directory of archives `*.tar`, or a pattern such as `photos/train-*.tar`.
        extensions: extensions of images, without dot, in any case. Other members are left out.
        label: extension of the member that holds the class of a sample, as a whole number.
        num_classes: number of classes; None: as many as `class_names`, or the largest class plus 1.
        class_names: names of the classes.
        index: file that keeps the index; None: a hidden file beside the archives.

    Raises:
        DataError: if there are no archives, one of them is no tar archive or is damaged, a sample lacks its
            image or its class, or a class is no whole number or too large.
    """
    endings = tuple(ending.removeprefix(".") for ending in image_endings(extensions, "tar_shards"))
    paths = _archives(path)
    stamps = np.array([(stat.st_size, stat.st_mtime_ns) for stat in map(_stat, paths)], np.int64)
    label = label.lower().removeprefix(".")
    question = repr((FORMAT, [each.name for each in paths], endings, label)).encode(errors="surrogateescape")
    digest = np.frombuffer(hashlib.sha256(question).digest(), np.uint8)
    name = f".hpcbal-index-{digest[:8].tobytes().hex()}.npz"
    file = paths[0].with_name(name) if index is None else Path(index).expanduser()
    found, remark = _kept(file), ""
    if found is None or not found.answers(digest, stamps):
        found = _indexed(paths, digest, stamps, endings, label)
        remark = _keep(file, found)
    most = int(found.label.max()) + 1
    is_counted = num_classes is None and class_names is None
    if num_classes is None:
        num_classes = most if class_names is None else len(class_names)
    if most > num_classes or (class_names is not None and len(class_names) != num_classes):
        named = "" if class_names is None else f" and {len(class_names)} class_names"
        raise DataError(
            f"tar_shards: data.args has {num_classes} classes{named}, but the labels of {path} go up to "
            f"{most - 1}; give as many names as classes, and a class for each label"
        )
    return TarShards(paths, found, num_classes, class_names, remark, is_counted=is_counted)


def _archives(path: str) -> list[Path]:
    root = Path(path).expanduser()
    if root.is_dir():
        paths = sorted(each for each in root.glob("*.tar") if not each.name.startswith("."))
    else:
        paths = [root] if root.exists() else sorted(map(Path, glob.glob(str(root))))
    if not paths:
        where = f" (from {Path.cwd()})" if not root.is_absolute() else ""
        raise DataError(
            f"tar_shards: {path}{where} is no archive and holds none; set data.args.path to an archive, to a "
            "directory of archives *.tar, or to a pattern such as train-*.tar"
        )
    return paths


def _stat(path: Path) -> os.stat_result:
    try:
        return path.stat()
    except OSError as error:
        raise DataError(f"tar_shards: {path} cannot be read: {error.strerror}") from error


def _kept(file: Path) -> Index | None:
    """The index in a file; None if there is none, or it is damaged."""
    try:
        with open(file, "rb") as opened, np.load(opened, allow_pickle=False) as arrays:
            return Index(**{each.name: arrays[each.name] for each in fields(Index)})
    except (OSError, ValueError, TypeError, KeyError, EOFError, zipfile.BadZipFile):
        return None


def _keep(file: Path, index: Index) -> str:
    """Write an index, so that other processes see all of it or nothing; return why that is not possible."""
    try:
        with tempfile.NamedTemporaryFile(dir=file.parent, prefix=file.name, delete=False) as temporary:
            try:
                np.savez(temporary, **{each.name: getattr(index, each.name) for each in fields(Index)})
                temporary.flush()
                os.chmod(temporary.name, 0o644)
                os.replace(temporary.name, file)
            except BaseException:
                os.unlink(temporary.name)
                raise
    except OSError as error:
        return (
            f"tar_shards: {file} cannot be written ({error.strerror}), so each start reads all archives to "
            "find their samples; set data.args.index to a file that can be written"
        )
    return ""


def _indexed(
    paths: Sequence[Path],
    question: NDArray[np.uint8],
    stamps: NDArray[np.int64],
    endings: Sequence[str],
    label: str,
) -> Index:
    archive: list[int] = []
    first: list[int] = []
    length: list[int] = []
    labels: list[int] = []
    keys: list[bytes] = []
    for number, path in enumerate(paths):
        try:
            for key, image, label_value in _samples(path, endings, label):
                archive.append(number)
                first.append(image.offset_data)
                length.append(image.size)
                labels.append(label_value)
                keys.append(key.encode(errors="surrogateescape"))
        except (tarfile.TarError, EOFError) as error:
            raise DataError(
                f"tar_shards: {path} is no tar archive, or is damaged ({error}); restore it, and unpack "
                "compressed archives to plain .tar files"
            ) from error
        except OSError as error:
            raise DataError(f"tar_shards: {path} cannot be read: {error.strerror or error}") from error
    if not keys:
        shown = ", ".join(f".{ending}" for ending in endings)
        raise DataError(f"tar_shards: no member {shown} in {len(paths)} archives, the first one {paths[0]}")
    return Index(
        question,
        stamps[:, 0],
        stamps[:, 1],
        np.array(archive, np.int64),
        np.array(first, np.int64),
        np.array(length, np.int64),
        np.array(labels, np.int64),
        np.frombuffer(b"".join(keys), np.uint8),
        np.cumsum([len(key) for key in keys], dtype=np.int64),
    )


def _samples(path: Path, endings: Sequence[str], label: str) -> Iterator[tuple[str, tarfile.TarInfo, int]]:
    """The samples of an archive: neighbours with the same name up to the first dot, as in WebDataset."""
    current, image, value = "", None, None
    with open(path, "rb") as file, tarfile.open(fileobj=file, mode="r:") as archive:
        for member in archive:
            archive.members = []  # type: ignore[attr-defined]  # tarfile keeps all of them otherwise
            folder, _, name = member.name.rpartition("/")
            stem, _, extension = name.partition(".")
            if not member.isfile() or not stem:
                continue
            key = f"{folder}/{stem}" if folder else stem
            if key != current:
                if image is not None or value is not None:
                    yield _whole(path, current, image, value, label)
                current, image, value = key, None, None
            extension = extension.lower()
            if extension == label:
                value = _class_of(path, member, file.fileno())
            elif extension in endings:
                image = member
        # Where headers are damaged, tarfile stops as if the archive ended there.
        block = os.pread(file.fileno(), tarfile.BLOCKSIZE, archive.offset)
        if len(block) < tarfile.BLOCKSIZE or any(block):
            raise tarfile.ReadError(f"no member and no end of the archive at byte {archive.offset}")
    if image is not None or value is not None:
        yield _whole(path, current, image, value, label)


def _whole(
    path: Path, key: str, image: tarfile.TarInfo | None, value: int | None, label: str
) -> tuple[str, tarfile.TarInfo, int]:
    if image is None or value is None:
        lacks = "no image" if image is None else f"no member {key}.{label} with its class"
        raise DataError(
            f"tar_shards: {path}: sample {key} has {lacks} beside it; set data.args.extensions and "
            "data.args.label to the extensions that the archive uses"
        )
    return key, image, value


def _class_of(path: Path, member: tarfile.TarInfo, descriptor: int) -> int:
    text = os.pread(descriptor, min(member.size, _MOST_DIGITS), member.offset_data).strip()
    if not (text.isdigit() and len(text) < _MOST_DIGITS):
        raise DataError(
            f"tar_shards: {path}: {member.name} holds {text!r}, allowed: a class, which is a whole number, 0 "
            "or more"
        )
    return int(text)
