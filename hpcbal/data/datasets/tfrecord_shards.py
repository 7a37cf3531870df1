"""Encoded images in TFRecord files, as TensorFlow Datasets and the scripts for ImageNet write them."""

from __future__ import annotations

import re
from array import array
from collections.abc import Mapping, Sequence
from io import FileIO
from pathlib import Path
from typing import Any, NamedTuple

from hpcbal.data.datasets.arguments import check_names
from hpcbal.data.datasets.index import Arrays, index_of
from hpcbal.data.datasets.shards import (
    Ranges,
    ShardFiles,
    ShardSamples,
    ranges_index,
    shard_files,
    texts_as_classes,
)
from hpcbal.data.datasets.tfrecord import (
    BYTES,
    FLOATS,
    INTEGERS,
    NOTHING,
    Feature,
    Span,
    TFRecordError,
    features_of,
    records,
)
from hpcbal.errors import DataError

IMAGE_FEATURES = ("image/encoded", "image", "img", "image_raw", "jpg", "jpeg", "png")
LABEL_FEATURES = ("image/class/label", "label", "labels", "class", "target", "y")
"""Usual names."""

_NAME = re.compile(r".*(\.tfrecords?\b(?!.*\.(index|idx)$)|-\d{5}-of-\d{5}$)")
"""Of a file of a directory; DALI keeps an index beside each."""
_KINDS = {NOTHING: "nothing", BYTES: "bytes", FLOATS: "floats", INTEGERS: "whole numbers"}


def tfrecord_shards(
    path: str,
    image: str | None = None,
    label: str | None = None,
    num_classes: int | None = None,
    class_names: Sequence[str] | None = None,
    index: str | None = None,
) -> ShardSamples:
    """Open the samples of TFRecord files; reads all files once if their index is missing or of others.

    Each record is a `tf.train.Example`. The checksums of all records are checked when the index is made.

    Args:
        path: a file, a directory of files `*.tfrecord*` or `*-00000-of-00010`, or a pattern such as
            `photos/train-*`.
        image: name of the feature that holds the encoded image; None: the usual name that it has.
        label: name of the feature that holds the class, a whole number or a text; None: likewise.
        num_classes: number of classes; None: as many as `class_names`, or the largest class plus 1.
        class_names: names of the classes; None: those in `<label>.labels.txt` beside the files, as TensorFlow
            Datasets writes them, or labels that are texts, in alphabetical order.
        index: file that keeps the index; None: a hidden file beside the data.

    Raises:
        DataError: if there are no files, one of them is no TFRecord file or is damaged, a record has no
            such features, or a class is below 0 or too large.
    """
    check_names("tfrecord_shards", image=image, label=label)
    files = shard_files(
        "tfrecord_shards", path, "*.tfrecord*", lambda name: bool(_NAME.match(name)), FileIO.fileno
    )
    found, remarks = index_of(
        "tfrecord_shards",
        index,
        files.folder,
        (files.names, image, label),
        files.stamps.tolist(),
        lambda: _indexed(files, image, label),
    )
    if class_names is None:
        class_names = _names_beside(files.folder, LABEL_FEATURES if label is None else (label,))
    shown = f"tfrecord_shards: {path}"
    return ShardSamples(
        shown, files.names, found, Ranges(files, found), num_classes, class_names, files.remarks + remarks
    )


def _names_beside(folder: Path, labels: Sequence[str]) -> list[str] | None:
    """The names of classes that TensorFlow Datasets has written for one of these features, a line each."""
    for label in labels:
        try:
            lines = (folder / f"{label}.labels.txt").read_text(encoding="utf-8").split("\n")
            return [line.strip() for line in lines if line.strip()]  # as TensorFlow Datasets reads them
        except FileNotFoundError:
            continue
        except (OSError, ValueError) as error:
            why = error.strerror if isinstance(error, OSError) else "it is no text"
            raise DataError(
                f"tfrecord_shards: {folder / label}.labels.txt cannot be read: {why}; restore it, or set "
                "data.args.class_names"
            ) from error
    return None


def _indexed(files: ShardFiles[int], image: str | None, label: str | None) -> Arrays:
    """Return the index of `Ranges`, the labels, and the names of the classes if labels are texts."""
    places = array("q")
    number_of: dict[str, int] = {}  # of labels that are texts, in the order in which they come
    wanted: _Wanted | None = None
    for shard, path in enumerate(files.paths):
        try:
            with open(path, "rb") as file:
                for number, (start, data) in enumerate(records(file, int(files.stamps[shard, 0]))):
                    try:
                        wanted = wanted or _Wanted.of(features_of(data), image, label)
                        (first, stop), value = wanted.sample(data)
                    except TFRecordError as error:
                        raise DataError(f"tfrecord_shards: {path}: record {number}: {error}") from error
                    if isinstance(value, str):
                        value = number_of.setdefault(value, len(number_of))
                    places.extend((shard, start + first, stop - first, value))
        except TFRecordError as error:
            raise DataError(
                f"tfrecord_shards: {path} is no TFRecord file, or is damaged ({error}); restore it, and "
                "unpack compressed files"
            ) from error
        except OSError as error:
            raise DataError(f"tfrecord_shards: {path} cannot be read: {error.strerror or error}") from error
    if not places:
        raise DataError(f"tfrecord_shards: {files.folder}: no record in {', '.join(files.names[:5])}")
    found = ranges_index(places)
    return {**found, **texts_as_classes(found["label"], list(number_of))} if number_of else found


class _Wanted(NamedTuple):
    """The features that hold image and label, and the kind of the label."""

    image: str
    label: str
    label_kind: int

    @classmethod
    def of(cls, features: Mapping[str, Feature], image: str | None, label: str | None) -> _Wanted:
        """Choose them by the features of the first record."""
        chosen = []
        for given, usual, role in ((image, IMAGE_FEATURES, "image"), (label, LABEL_FEATURES, "label")):
            found = [name for name in (usual if given is None else (given,)) if name in features]
            if len(found) != 1:
                shown = ", ".join(f"{name} ({_KINDS[each.kind]})" for name, each in sorted(features.items()))
                raise TFRecordError(
                    f"the features are {shown or 'none'}, which does not show which is the {role}; set "
                    f"data.args.{role} to its name"
                )
            chosen += found
        kind = features[chosen[1]].kind
        return cls(chosen[0], chosen[1], BYTES if kind == BYTES else INTEGERS)

    def sample(self, example: bytes) -> tuple[Span, int | str]:
        """Return where the image is, and the label.

        Raises:
            TFRecordError: if there is not one of each, or the label is no class.
        """
        features = features_of(example, (self.image, self.label))
        image: Span = self._value(features, self.image, BYTES)
        value = self._value(features, self.label, self.label_kind)
        if self.label_kind == BYTES:
            try:
                return image, example[slice(*value)].decode()
            except UnicodeDecodeError as error:
                raise TFRecordError(f"the feature {self.label!r} is no text") from error
        if value < 0:
            raise TFRecordError(f"the feature {self.label!r} is {value}, allowed: a class, 0 or more")
        return image, value

    def _value(self, features: Mapping[str, Feature], name: str, kind: int) -> Any:
        if name not in features:
            raise TFRecordError(f"there is no feature {name!r}, which the first record has")
        feature = features[name]
        if feature.kind != kind or len(feature.values) != 1:
            many = f"{len(feature.values)} of them" if feature.kind == kind else _KINDS[feature.kind]
            raise TFRecordError(f"the feature {name!r} holds {many}, allowed: one of the kind {_KINDS[kind]}")
        return feature.values[0]
