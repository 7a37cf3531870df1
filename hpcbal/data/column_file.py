"""A table with arrays as columns in a Parquet, HDF5 or CSV file, which is there as a whole or not at all."""

from __future__ import annotations

import csv
import importlib.util
import json
import math
import os
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hpcbal.errors import InputError
from hpcbal.telemetry.files.atomic_file import output_error, sync_directory

ENDINGS = (".parquet", ".h5", ".csv")
BLOCK_BYTES = 16 * 2**20
"""Bytes of the rows that are in memory while the file is written; at least one row."""

Texts = Callable[[int], str]
"""The text of a row, by its number."""
_Block = Mapping[str, "NDArray[Any] | list[str]"]


def check_place(path: Path, *, force: bool) -> None:
    """Check that a table can be written to the path of `--to`.

    Args:
        force: whether a file that is there may be replaced.

    Raises:
        InputError: if it cannot.
    """
    if path.suffix not in ENDINGS:
        raise InputError(f"--to: got {path}, allowed: a name that ends in {', '.join(ENDINGS)}")
    if path.suffix == ".parquet" and importlib.util.find_spec("pyarrow") is None:
        raise InputError(f"--to: {path} needs pyarrow: pip install 'hpcbal[parquet]', or choose .h5 or .csv")
    if not path.absolute().parent.is_dir():
        raise InputError(f"--to: {path.parent} is not a directory; make it, or choose another place")
    if path.is_dir():
        raise InputError(f"--to: {path} is a directory; give a file")
    if os.path.lexists(path) and not force:
        raise InputError(f"--to: {path} exists; choose another name, or replace it with --force")


class ColumnFile:
    """Collects columns part by part on disk, then writes the file; a context manager that cleans up.

    Args:
        path: the file, see `check_place`; parts lie in a hidden folder beside it.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._folder = path.with_name(f".{path.name}.{os.getpid()}.tmp")
        self._forms: dict[str, tuple[np.dtype[Any], tuple[int, ...]]] = {}
        self.clear()

    def __enter__(self) -> ColumnFile:
        return self

    def __exit__(self, *_: object) -> None:
        shutil.rmtree(self._folder, ignore_errors=True)

    def clear(self) -> None:
        """Forget all parts."""
        self._forms.clear()
        shutil.rmtree(self._folder, ignore_errors=True)

    def append(self, columns: Mapping[str, NDArray[Any]]) -> None:
        """Add rows to some columns; of each column all parts have the same type and shape of a row.

        Raises:
            OutputError: if they cannot be written.
        """
        try:
            self._folder.mkdir(exist_ok=True)
            for name, values in columns.items():
                form = (values.dtype, values.shape[1:])
                assert self._forms.setdefault(name, form) == form, "parts of a column are alike"
                with open(self._part(name), "ab") as file:
                    file.write(np.ascontiguousarray(values).data)
        except OSError as error:
            raise output_error(self.path, error) from error

    def write(self, num_rows: int, texts: Mapping[str, Texts], facts: Mapping[str, Any]) -> None:
        """Write the file: columns of texts first, then the others.

        Args:
            num_rows: each column has so many, > 0.
            texts: of each column of texts, by name.
            facts: about the table, which JSON can hold; CSV has no place for them.

        Raises:
            OutputError: if it cannot be written.
        """
        arrays: dict[str, NDArray[Any]] = {
            name: np.memmap(self._part(name), dtype, "r", shape=(num_rows, *shape))
            for name, (dtype, shape) in self._forms.items()
        }
        per_row = 100 * len(texts) + sum(
            each.itemsize * math.prod(each.shape[1:]) for each in arrays.values()
        )
        step = max(1, BLOCK_BYTES // max(1, per_row))

        def blocks() -> Iterator[_Block]:
            for start in range(0, num_rows, step):
                stop = min(start + step, num_rows)
                of_texts = {name: [_clean(of(i)) for i in range(start, stop)] for name, of in texts.items()}
                yield {**of_texts, **{name: each[start:stop] for name, each in arrays.items()}}

        aside = self._folder / f"whole{self.path.suffix}"
        writer = {".parquet": _write_parquet, ".h5": _write_hdf5, ".csv": _write_csv}[self.path.suffix]
        try:
            writer(aside, num_rows, blocks(), {name: json.dumps(value) for name, value in facts.items()})
            with open(aside, "rb") as file:
                os.fsync(file.fileno())
            os.replace(aside, self.path)
            sync_directory(self.path.absolute().parent)
        except OSError as error:
            raise output_error(self.path, error) from error

    def _part(self, name: str) -> Path:
        return self._folder / f"{list(self._forms).index(name)}.bin"


def _clean(text: str) -> str:
    """The text without what UTF-8 cannot hold, such as bytes of file names in another encoding."""
    return text.encode(errors="surrogateescape").decode(errors="replace")


def _write_parquet(path: Path, num_rows: int, blocks: Iterator[_Block], facts: Mapping[str, str]) -> None:
    import pyarrow as pa
    from pyarrow import parquet

    def arrow(values: NDArray[Any] | Sequence[str]) -> pa.Array:
        if not isinstance(values, np.ndarray):
            return pa.array(values, pa.string())
        if values.ndim == 1:
            return pa.array(values)
        return pa.FixedSizeListArray.from_arrays(
            arrow(values.reshape(-1, *values.shape[2:])), values.shape[1]
        )

    writer = None
    for block in blocks:
        table = pa.table({name: arrow(values) for name, values in block.items()})
        table = table.replace_schema_metadata({f"hpcbal.{name}": value for name, value in facts.items()})
        writer = writer or parquet.ParquetWriter(path, table.schema)
        writer.write_table(table)
    assert writer is not None, "there is at least one row"
    writer.close()


def _write_hdf5(path: Path, num_rows: int, blocks: Iterator[_Block], facts: Mapping[str, str]) -> None:
    import h5py

    with h5py.File(path, "w") as file:
        file.attrs.update(facts)
        start = 0
        for block in blocks:
            for name, values in block.items():
                if name not in file:
                    dtype = values.dtype if isinstance(values, np.ndarray) else h5py.string_dtype()
                    file.create_dataset(name, (num_rows, *np.shape(values)[1:]), dtype)
                file[name][start : start + len(values)] = values
            start += len(next(iter(block.values())))


def _write_csv(path: Path, num_rows: int, blocks: Iterator[_Block], facts: Mapping[str, str]) -> None:
    with open(path, "w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        for number, block in enumerate(blocks):
            if number == 0:
                writer.writerow([name for each in block.items() for name in _flat_names(*each)])
            writer.writerows(zip(*(column for each in block.values() for column in _flat(each)), strict=True))


def _flat_names(name: str, values: NDArray[Any] | list[str]) -> list[str]:
    """The names of the columns of single numbers, such as `probabilities_0`."""
    if not isinstance(values, np.ndarray):
        return [name]
    return ["_".join([name, *map(str, place)]) for place in np.ndindex(*values.shape[1:])]


def _flat(values: NDArray[Any] | list[str]) -> list[list[Any]]:
    """The columns of single numbers as texts; NaN is empty."""
    if not isinstance(values, np.ndarray):
        return [values]
    columns = values.reshape(len(values), -1).T
    if values.dtype.kind != "f":
        return [column.tolist() for column in columns]
    return [["" if math.isnan(each) else str(each) for each in column] for column in columns]
