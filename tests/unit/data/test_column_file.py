"""Columns come back from each format as they were written, in any parts, or there is no file."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
from pyarrow import parquet

from hpcbal.data import column_file
from hpcbal.data.column_file import ENDINGS, ColumnFile, check_place
from hpcbal.errors import InputError, OutputError

COLUMNS: dict[str, np.ndarray] = {
    "predicted": np.arange(7, dtype=np.int32),
    "probabilities": np.arange(42, dtype=np.float32).reshape(7, 3, 2) / 8,
    "value": np.array([0.1, np.nan, 1e300, -2.0, 0.0, 5.0, 1 / 3]),
}
TEXTS = {"sample": lambda row: f"a,{row}\udcff"}


def written(path: Path) -> None:
    with ColumnFile(path) as file:
        file.append({name: values[:1] for name, values in COLUMNS.items()})
        file.clear()
        for start, stop in ((0, 3), (3, 7)):
            file.append({name: values[start:stop] for name, values in COLUMNS.items()})
        assert not path.exists()
        file.write(7, TEXTS, {"classes": ["cat", "dog"]})


def read(path: Path) -> dict[str, Any]:
    if path.suffix == ".parquet":
        table = parquet.read_table(path)
        assert json.loads(table.schema.metadata[b"hpcbal.classes"]) == ["cat", "dog"]
        return {name: table[name].to_pylist() for name in table.column_names}
    if path.suffix == ".h5":
        with h5py.File(path) as file:
            assert json.loads(file.attrs["classes"]) == ["cat", "dog"]
            text = {"sample": file["sample"].asstr()[()].tolist()}
            return text | {name: file[name][()].tolist() for name in COLUMNS}
    with open(path, encoding="utf-8", newline="") as lines:
        rows = list(csv.reader(lines))
    assert rows[0][:4] == ["sample", "predicted", "probabilities_0_0", "probabilities_0_1"]
    table = np.array([[float(each or "nan") for each in row[1:]] for row in rows[1:]])
    found = np.split(table, [1, 7], axis=1)
    shaped = [
        each.reshape(values.shape).tolist() for each, values in zip(found, COLUMNS.values(), strict=True)
    ]
    return {"sample": [row[0] for row in rows[1:]], **dict(zip(COLUMNS, shaped, strict=True))}


@pytest.mark.parametrize("ending", ENDINGS)
@pytest.mark.parametrize("block_bytes", [2**20, 1])
def test_columns_come_back(
    tmp_path: Path, ending: str, block_bytes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(column_file, "BLOCK_BYTES", block_bytes)
    path = tmp_path / f"out{ending}"
    written(path)
    found = read(path)
    assert found["sample"] == [f"a,{row}�" for row in range(7)]
    for name, values in COLUMNS.items():
        np.testing.assert_array_equal(np.array(found[name], values.dtype), values)
    assert list(tmp_path.iterdir()) == [path]


def test_without_an_end_there_is_no_file(tmp_path: Path) -> None:
    with ColumnFile(tmp_path / "out.csv") as file:
        file.append({"predicted": COLUMNS["predicted"]})
    assert not list(tmp_path.iterdir())


def test_a_place_that_cannot_be_written_is_told(tmp_path: Path) -> None:
    folder = tmp_path / "gone"
    folder.mkdir()
    with ColumnFile(folder / "out.csv") as file:
        folder.rmdir()
        with pytest.raises(OutputError, match=r"gone/out\.csv: cannot write"):
            file.append({"predicted": COLUMNS["predicted"]})


def test_wrong_places_are_refused_before_anything_is_computed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "there.csv").touch()
    (tmp_path / "folder.h5").mkdir()
    for name, problem in (
        ("out.json", r"--to: got .*out\.json, allowed: a name that ends in \.parquet, \.h5, \.csv"),
        ("none/out.csv", "none is not a directory; make it"),
        ("folder.h5", "is a directory; give a file"),
        ("there.csv", "exists; choose another name, or replace it with --force"),
    ):
        with pytest.raises(InputError, match=problem):
            check_place(tmp_path / name, force=False)
    check_place(tmp_path / "there.csv", force=True)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(InputError, match=r"needs pyarrow: pip install 'hpcbal\[parquet\]', or choose"):
        check_place(tmp_path / "out.parquet", force=False)
    check_place(tmp_path / "out.csv", force=False)
