"""Encoded images in tar archives, as WebDataset writes them: `key.jpg` and `key.cls` side by side."""

from __future__ import annotations

import os
import reprlib
import tarfile
from array import array
from collections.abc import Iterator, Sequence
from io import FileIO
from itertools import groupby, islice
from pathlib import Path
from typing import BinaryIO

from hpcbal.data.datasets.arguments import check_names, image_endings
from hpcbal.data.datasets.image_folder import DEFAULT_EXTENSIONS
from hpcbal.data.datasets.index import Arrays, index_of
from hpcbal.data.datasets.shards import Ranges, ShardFiles, ShardSamples, ranges_index, shard_files
from hpcbal.errors import DataError

_MOST_SHOWN = 3
"""Names in a message."""
_MOST_DIGITS, _MOST_BYTES = 18, 4096
"""Of a class, and of the file that holds it, with spaces and ends of lines."""


def tar_shards(
    path: str,
    extensions: Sequence[str] = DEFAULT_EXTENSIONS,
    label: str = "cls",
    num_classes: int | None = None,
    class_names: Sequence[str] | None = None,
    index: str | None = None,
) -> ShardSamples:
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
            image or its class or has two of them, one of these is a link, or a class is no whole number or
            too large.
    """
    check_names("tar_shards", label=label)
    endings = tuple(ending.removeprefix(".") for ending in image_endings(extensions, "tar_shards"))
    files = shard_files(
        "tar_shards", path, "*.tar", lambda name: name.lower().endswith(".tar"), FileIO.fileno
    )
    label = label.lower().removeprefix(".")
    found, remarks = index_of(
        "tar_shards",
        index,
        files.folder,
        (files.names, endings, label),
        files.stamps.tolist(),
        lambda: _indexed(files, endings, label),
    )
    shown = f"tar_shards: {path}"
    return ShardSamples(
        shown, files.names, found, Ranges(files, found), num_classes, class_names, files.remarks + remarks
    )


def _indexed(files: ShardFiles[int], endings: Sequence[str], label: str) -> Arrays:
    """Return the index of `Ranges`, and the labels."""
    places = array("q")
    keys: list[str] = []
    for number, path in enumerate(files.paths):
        try:
            for key, image, value in _samples(path, endings, label):
                places.extend((number, image.offset_data, image.size, value))
                keys.append(key)
        except (tarfile.TarError, EOFError) as error:
            raise DataError(
                f"tar_shards: {path} is no tar archive, or is damaged ({error}); restore it, and unpack "
                "compressed archives to plain .tar files"
            ) from error
        except OSError as error:
            raise DataError(f"tar_shards: {path} cannot be read: {error.strerror or error}") from error
    if not keys:
        with open(files.paths[0], "rb") as file:
            names = [member.name for member in islice(_members(file), _MOST_SHOWN)]
        others = f" and {len(files.paths) - 1} more" if len(files.paths) > 1 else ""
        raise DataError(
            f"tar_shards: no member {_shown(endings)} in {files.paths[0]}{others}{_instead(names, endings)}"
        )
    return ranges_index(places, keys)


def _samples(path: Path, endings: Sequence[str], label: str) -> Iterator[tuple[str, tarfile.TarInfo, int]]:
    """The samples of an archive: neighbours with the same name up to the first dot, as in WebDataset."""
    with open(path, "rb") as file:
        for key, members in groupby(_members(file), lambda member: _parts_of_name(member.name)[0]):
            image: tarfile.TarInfo | None = None
            of_class: tarfile.TarInfo | None = None
            for member in members:
                extension = _parts_of_name(member.name)[1]
                if extension == label:
                    _check_member(path, key, of_class, member)
                    of_class = member
                elif extension in endings:
                    _check_member(path, key, image, member)
                    image = member
            if image is not None and of_class is not None:
                yield key, image, _class_of(path, of_class, file.fileno())
            elif image is not None or of_class is not None:
                raise _not_whole(path, key, endings if image is None else (label,))


def _members(file: BinaryIO) -> Iterator[tarfile.TarInfo]:
    """The members of an archive, without directories and hidden files.

    Args:
        file: the archive, at its start.

    Raises:
        tarfile.TarError: if it is damaged.
    """
    with tarfile.open(fileobj=file, mode="r:") as archive:
        for member in archive:
            archive.members = []  # type: ignore[attr-defined]  # tarfile keeps all of them otherwise
            if not member.isdir() and not member.name.rpartition("/")[2].startswith("."):
                yield member
    # Where headers are damaged, tarfile stops as if the archive ended there.
    block = os.pread(file.fileno(), tarfile.BLOCKSIZE, archive.offset)
    if len(block) < tarfile.BLOCKSIZE or any(block):
        raise tarfile.ReadError(f"no member and no end of the archive at byte {archive.offset}")
    place = archive.offset
    while rest := os.pread(file.fileno(), 2**20, place):
        if any(rest):
            raise tarfile.ReadError(
                f"there is more after its end at byte {archive.offset}: tar --concatenate joins archives, "
                "cat does not"
            )
        place += len(rest)


def _parts_of_name(member: str) -> tuple[str, str]:
    """The key of the sample, with its folder, and the extension in lower case, from the first dot on."""
    folder, slash, name = member.rpartition("/")
    stem, _, extension = name.partition(".")
    return folder + slash + stem, extension.lower()


def _check_member(path: Path, key: str, first: tarfile.TarInfo | None, second: tarfile.TarInfo) -> None:
    """Check that an image or class is stored as it is, and alone: nobody knows which of two is meant.

    Args:
        first: the image or the class of this sample that was found before.
        second: the one that was found now.

    Raises:
        DataError: if there are both, or `second` is no plain file.
    """
    for is_so, kind, how in (
        (second.islnk(), f"a hard link to {second.linkname}", "with --hard-dereference"),
        (second.issym(), f"a symbolic link to {second.linkname}", "with --dereference"),
        (second.issparse(), "a sparse file", "without --sparse"),
        (not second.isreg(), "no file", "without it"),
    ):
        if is_so:
            raise DataError(
                f"tar_shards: {path}: {second.name} is {kind}, allowed: a plain file; pack the archive {how}"
            )
    if first is None:
        return
    if _parts_of_name(first.name)[1] == _parts_of_name(second.name)[1]:
        advice = "give each sample a name of its own"
    else:
        advice = "set data.args.extensions to those of the images to train on"
    names = [first.name, second.name]
    both = f"{names[0]} twice" if names[0] == names[1] else f"both {names[0]} and {names[1]}"
    raise DataError(f"tar_shards: {path}: sample {key} has {both}; {advice}")


def _not_whole(path: Path, key: str, lacking: Sequence[str]) -> DataError:
    """The error of a sample that lacks its image or its class, by what the whole archive has of it.

    Args:
        lacking: extensions, one of which it should have.
    """
    with open(path, "rb") as file:
        names = [member.name for member in _members(file) if _parts_of_name(member.name)[0] == key]
    elsewhere = next((name for name in names if _parts_of_name(name)[1] in lacking), None)
    start = f"tar_shards: {path}: sample {key} has no member {_shown(lacking)} beside it"
    if elsewhere is not None:
        return DataError(
            f"{start}, because {elsewhere} is elsewhere in the archive; the members of a sample have to "
            "follow one another, as tar --sort=name packs them"
        )
    return DataError(
        f"{start}{_instead(names[:_MOST_SHOWN], lacking)}; set data.args.extensions and data.args.label to "
        "the extensions that the archive uses"
    )


def _instead(names: Sequence[str], wanted: Sequence[str]) -> str:
    """Say what is there instead of members with extensions, and whether dots in names are why."""
    dotted = next((name for name in names if name.lower().rpartition(".")[2] in wanted), None)
    why = "" if dotted is None else f" (.{_parts_of_name(dotted)[1]} is one extension, as in WebDataset)"
    return f", but {', '.join(names)}{why}" if names else ""


def _shown(extensions: Sequence[str]) -> str:
    return ", ".join(f".{extension}" for extension in extensions)


def _class_of(path: Path, member: tarfile.TarInfo, descriptor: int) -> int:
    text = os.pread(descriptor, min(member.size, _MOST_BYTES), member.offset_data).strip()
    if member.size > _MOST_BYTES or not (text.isdigit() and len(text) <= _MOST_DIGITS):
        raise DataError(
            f"tar_shards: {path}: {member.name} holds {reprlib.repr(text)}, allowed: a class, which is a "
            "whole number, 0 or more"
        )
    return int(text)
