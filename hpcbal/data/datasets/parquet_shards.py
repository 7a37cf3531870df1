"""Encoded images in Parquet files, as Hugging Face writes them: columns `image` with bytes, and `label`."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from hpcbal.data.dataset import UnusableSampleError
from hpcbal.data.datasets.arguments import check_names
from hpcbal.data.datasets.index import Arrays, index_of
from hpcbal.data.datasets.shards import (
    ShardFiles,
    ShardSamples,
    named_classes,
    shard_files,
    texts_as_classes,
)
from hpcbal.data.items import LABEL_COLUMNS, SAMPLE_COLUMNS
from hpcbal.errors import DataError, HpcbalError
from hpcbal.safe_text import one_line

if TYPE_CHECKING:
    import pyarrow as pa
    from pyarrow import parquet

LARGE_GROUP_BYTES = 4 * 2**20
"""Images in a row group from which on unpacking it takes longer than decoding one of them."""


class RowGroups:
    """Images that are rows of Parquet files; the row group that was read last stays in memory.

    Args:
        files: read with pyarrow.
        index: of each row group `group_shard`, the number of its file, `group`, its number there, and
            `group_rows`, how many rows it has.
        column: the path of the images' column.
    """

    num_digested = 8  # each of them unpacks a row group

    def __init__(self, files: ShardFiles[parquet.ParquetFile], index: Arrays, column: str) -> None:
        self._files, self._column = files, column
        self._shard, self._group = index["group_shard"], index["group"]
        self._ends = np.cumsum(index["group_rows"])
        self._first_of_shard = np.searchsorted(self._shard, np.arange(len(files.paths)))
        self._held: tuple[int, pa.ChunkedArray] | None = None

    def image(self, sample_id: int) -> bytes:
        """The bytes of an image."""
        group = int(np.searchsorted(self._ends, sample_id, side="right"))
        if self._held is None or self._held[0] != group:
            self._held = None  # two do not need to fit into memory
            self._held = group, self._read(group)
        value = self._held[1][sample_id - self._start(group)].as_py()
        content = value["bytes"] if isinstance(value, dict) else value
        if content is None:
            raise UnusableSampleError("the row has no image")
        return bytes(content)

    def where(self, sample_id: int) -> str:
        """The file, and the row."""
        shard = self._shard[np.searchsorted(self._ends, sample_id, side="right")]
        first = self._start(int(self._first_of_shard[shard]))
        return f"{self._files.paths[shard].name}: row {sample_id - first}"

    def _start(self, group: int) -> int:
        return int(self._ends[group - 1]) if group else 0

    def _read(self, group: int) -> pa.ChunkedArray:
        import pyarrow as pa

        shard, number = int(self._shard[group]), int(self._group[group])
        file = self._files.opened(shard)
        try:
            return file.read_row_group(number, columns=[self._column], use_threads=False).column(0)
        except (pa.ArrowException, OSError) as error:
            raise UnusableSampleError(f"row group {number} cannot be read: {_why(error)}") from error
        finally:
            self._files.check_unchanged(shard)  # a change is the better reason


def parquet_shards(
    path: str,
    image: str | None = None,
    label: str | None = None,
    num_classes: int | None = None,
    class_names: Sequence[str] | None = None,
    index: str | None = None,
) -> ShardSamples:
    """Open the samples of Parquet files; reads all labels once if their index is missing or of others.

    Args:
        path: a file, a directory of files `*.parquet`, or a pattern such as `data/train-*.parquet`.
        image: name of the column with encoded images, either bytes or a struct with the field `bytes`; None:
            the usual name that there is.
        label: name of the column with classes, whole numbers or texts; None: likewise.
        num_classes: number of classes; None: as many as there are names, or the largest class plus 1.
        class_names: names of the classes; None: as Hugging Face has stored them, or labels that are texts, in
            alphabetical order.
        index: file that keeps the index; None: a hidden file beside the data.

    Raises:
        DataError: if pyarrow is missing, there are no files, one of them is no Parquet file, is damaged or
            has other columns, or a class is below 0 or too large.
    """
    try:
        from pyarrow import parquet
    except ImportError as error:
        raise DataError(f"parquet_shards: needs pyarrow ({error}); pip install 'hpcbal[parquet]'") from None
    check_names("parquet_shards", image=image, label=label)
    files = shard_files(
        "parquet_shards",
        path,
        "*.parquet",
        lambda name: name.lower().endswith(".parquet"),
        parquet.ParquetFile,
    )
    found, remarks = index_of(
        "parquet_shards",
        index,
        files.folder,
        (files.names, image, label),
        files.stamps.tolist(),
        lambda: _indexed(files, image, label),
    )
    remarks = files.remarks + remarks
    largest = int(found["group_bytes"].argmax())
    rows, num_bytes = int(found["group_rows"][largest]), int(found["group_bytes"][largest])
    if rows > 1 and num_bytes > LARGE_GROUP_BYTES:
        remarks += (
            f"parquet_shards: a row group of {path} has up to {rows} images ({num_bytes / 1e6:.0f} MB), and "
            "each read in random order unpacks a whole one; write the files with fewer rows in a group "
            "(row_group_size=8), or keep decoded samples in memory (dataplane.cache_bytes)",
        )
    images = RowGroups(files, found, found["column"].tobytes().decode())
    return ShardSamples(
        f"parquet_shards: {path}", files.names, found, images, num_classes, class_names, remarks
    )


def _indexed(files: ShardFiles[Any], image: str | None, label: str | None) -> Arrays:
    """Return the index of `RowGroups`, the labels, the path of the images' column, and names of classes."""
    import pyarrow as pa
    from pyarrow import parquet

    groups: list[tuple[int, int, int, int]] = []
    labels: list[NDArray[np.int64]] = []
    number_of: dict[str, int] = {}  # of labels that are texts, in the order in which they come
    columns: _Columns | None = None
    for shard, path in enumerate(files.paths):
        try:
            with open(path, "rb") as opened:
                file = parquet.ParquetFile(opened)
                own = _Columns.of(file.schema_arrow, image, label)
                columns = columns or own
                if own != columns:
                    raise _WrongColumnsError(f"it has {own}, but {files.names[0]} has {columns}")
                _check_alone(file.metadata.schema, columns)
                groups += [(shard, *facts) for facts in _row_groups(file.metadata, columns.image)]
                read = file.read(columns=[columns.label], use_threads=False).column(0)
                labels.append(_numbers(read, number_of if columns.are_texts else None))
        except _WrongColumnsError as error:
            raise DataError(f"parquet_shards: {path}: {error}") from error
        except (pa.ArrowException, OSError) as error:
            raise DataError(
                f"parquet_shards: {path} cannot be read, is no Parquet file, or is damaged ({_why(error)}); "
                "restore it"
            ) from error
    label_of_each = np.concatenate(labels)
    if columns is None or not len(label_of_each):
        raise DataError(f"parquet_shards: {files.folder}: no row in {', '.join(files.names[:5])}")
    shards, numbers, rows, num_bytes = np.array(groups, np.int64).T
    found = {
        "group_shard": shards,
        "group": numbers,
        "group_rows": rows,
        "group_bytes": num_bytes,
        "label": label_of_each,
        "column": np.frombuffer(columns.image.encode(), np.uint8),
    }
    if columns.are_texts:
        return {**found, **texts_as_classes(label_of_each, list(number_of))}
    return found if columns.class_names is None else {**found, **named_classes(columns.class_names)}


def _why(error: Exception) -> str:
    return one_line(getattr(error, "strerror", None) or str(error))


class _WrongColumnsError(HpcbalError):
    """A file has other columns, or values in them, than it needs."""


class _Columns(NamedTuple):
    """The columns of a file: path of the one with images, name of that with labels, and what these are."""

    image: str
    label: str
    are_texts: bool
    class_names: tuple[str, ...] | None

    def __str__(self) -> str:
        named = "" if self.class_names is None else f" of the classes {', '.join(self.class_names[:5])}"
        kind = "texts" if self.are_texts else "whole numbers"
        return f"images in {self.image!r} and {kind} in {self.label!r}{named}"

    @classmethod
    def of(cls, schema: pa.Schema, image: str | None, label: str | None) -> _Columns:
        """Choose the columns of a file.

        Raises:
            _WrongColumnsError: if it does not show which they are.
        """
        kinds = {
            "image": {field.name: _path_of_bytes(field) for field in schema},
            "label": {field.name: _kind_of_labels(field.type) for field in schema},
        }
        chosen = {}
        for role, given, usual in (("image", image, SAMPLE_COLUMNS), ("label", label, LABEL_COLUMNS)):
            found = [name for name in (usual if given is None else (given,)) if kinds[role].get(name)]
            if len(found) != 1:
                shown = ", ".join(f"{field.name} ({field.type})" for field in schema)
                raise _WrongColumnsError(
                    f"its columns are {shown}, which does not show which is the {role}; set data.args.{role} "
                    f"to the name of a column with {_ALLOWED[role]}"
                )
            chosen[role] = found[0]
        image_path, kind = kinds["image"][chosen["image"]], kinds["label"][chosen["label"]]
        names = None if kind == "texts" else _stored_names(schema, chosen["label"])
        return cls(image_path, chosen["label"], kind == "texts", names)


_ALLOWED = {"image": "bytes, or a struct with the field bytes", "label": "whole numbers or texts"}


def _path_of_bytes(field: pa.Field) -> str:
    """The path of encoded images in a column; empty if it has none."""
    import pyarrow as pa

    if not pa.types.is_struct(field.type):
        return field.name if _is_bytes(field.type) else ""
    place = field.type.get_field_index("bytes")
    return f"{field.name}.bytes" if place >= 0 and _is_bytes(field.type.field(place).type) else ""


def _is_bytes(kind: pa.DataType) -> bool:
    import pyarrow as pa

    return pa.types.is_binary(kind) or pa.types.is_large_binary(kind) or str(kind) == "binary_view"


def _kind_of_labels(kind: pa.DataType) -> str:
    import pyarrow as pa

    if pa.types.is_dictionary(kind):
        return _kind_of_labels(kind.value_type)
    if pa.types.is_string(kind) or pa.types.is_large_string(kind) or str(kind) == "string_view":
        return "texts"
    return "numbers" if pa.types.is_integer(kind) or pa.types.is_boolean(kind) else ""


def _stored_names(schema: pa.Schema, label: str) -> tuple[str, ...] | None:
    """The names that Hugging Face has stored for the classes of a column."""
    try:
        stored = json.loads((schema.metadata or {})[b"huggingface"])
        return tuple(map(str, stored["info"]["features"][label]["names"]))
    except (ValueError, LookupError, TypeError):  # others write what they like
        return None


def _check_alone(schema: parquet.ParquetSchema, columns: _Columns) -> None:
    """Check that names show which columns are meant: pyarrow reads all that have one, or begin with one.

    Raises:
        _WrongColumnsError: if there are several of them.
    """
    paths = [schema.column(number).path for number in range(len(schema))]
    for wanted in (columns.image, columns.label):
        found = [path for path in paths if path == wanted or path.startswith(f"{wanted}.")]
        if len(found) > 1:
            raise _WrongColumnsError(
                f"it has {len(found)} columns that {wanted!r} may mean ({', '.join(found[:5])}); rename all "
                "but one of them"
            )


def _row_groups(metadata: parquet.FileMetaData, column: str) -> list[tuple[int, int, int]]:
    """The number of each row group, how many rows it has, and the size of its images in bytes.

    Raises:
        _WrongColumnsError: if all images are missing.
    """
    found, num_missing = [], 0
    for number in range(metadata.num_row_groups):
        group = metadata.row_group(number)
        chunks = [group.column(place) for place in range(group.num_columns)]
        (chunk,) = [chunk for chunk in chunks if chunk.path_in_schema == column]
        found.append((number, group.num_rows, chunk.total_uncompressed_size))
        if chunk.statistics is not None and chunk.statistics.has_null_count:
            num_missing += chunk.statistics.null_count
    if num_missing and num_missing == metadata.num_rows:
        raise _WrongColumnsError(
            f"{column!r} is empty in all rows: the images are not in the file; write it with their bytes, or "
            "read the folder of images (hpcbal.data:image_folder)"
        )
    return found


def _numbers(column: pa.ChunkedArray, number_of: dict[str, int] | None) -> NDArray[np.int64]:
    """Labels as whole numbers.

    Args:
        number_of: numbers of texts, to which new ones are added; None: labels are numbers.

    Raises:
        _WrongColumnsError: if one is missing, below 0, or no int64.
    """
    import pyarrow as pa

    if column.null_count:
        row = int(column.is_null().to_numpy().argmax())
        raise _WrongColumnsError(f"row {row} has no label; leave out rows without one")
    if number_of is not None:
        texts = column.to_pylist()
        return np.array([number_of.setdefault(text, len(number_of)) for text in texts], np.int64)
    numbers = column.cast(pa.int64(), safe=False).to_numpy()
    if len(numbers) and numbers.min() < 0:
        row = int(numbers.argmin())
        label = column[row].as_py()  # the number may have been cut to 64 bits with a sign
        raise _WrongColumnsError(f"row {row} has the label {label}, allowed: a class, 0 or more, below 2**63")
    return numbers
