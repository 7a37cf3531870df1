"""Series of .ts files, whole or wrong."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from hpcbal.data.datasets import ts_series
from hpcbal.errors import DataError

HEADER = "# a comment\n@problemName x\n@timeStamps false\n@classLabel true b a\n@data\n"
TRAIN = HEADER + "1,2,3:4,5,6:a\n0.5:1e3:b\n"


def write(path: Path, text: str) -> str:
    path.write_text(text)
    return str(path)


def test_channels_are_columns_and_classes_are_numbered_as_listed(tmp_path: Path) -> None:
    dataset = ts_series(write(tmp_path / "x.ts", TRAIN), write(tmp_path / "y.ts", HEADER + "7,8:9,9:b\n"))
    assert len(dataset) == 3
    series, label = dataset.read(0)
    assert (series.tolist(), label) == ([[1, 4], [2, 5], [3, 6]], 1)
    assert dataset.sizes.tolist() == [3, 1, 2]
    assert dataset.sample_spec.shape == (None, 2)
    assert dataset.sample_spec.max_bytes == 3 * 2 * 4
    assert dataset.validation_ids is not None
    assert list(dataset.validation_ids) == [2]
    assert dataset.num_classes == 2
    assert dataset.describe(2).endswith("y.ts[0]")
    alone = ts_series(str(tmp_path / "x.ts"))
    assert alone.validation_ids is None
    assert alone.fingerprint != dataset.fingerprint


def test_series_of_one_length_have_a_static_shape(tmp_path: Path) -> None:
    dataset = ts_series(write(tmp_path / "x.ts", HEADER + "1,2:a\n3,4:b\n"))
    assert dataset.sample_spec.shape == (2, 1)
    np.testing.assert_array_equal(dataset.labels, [1, 0])


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        (HEADER, "at least one series"),
        (HEADER + "1,?:a\n", r"x\.ts:6: .*without missing values"),
        (HEADER + "1,2:3:a\n", r"x\.ts:6: .*channels of unequal length"),
        (HEADER + "1,2:c\n", r"x\.ts:6: got class 'c', allowed: b, a"),
        (HEADER + "1:a\n1:2:a\n", "all with as many channels"),
        (HEADER.replace("@classLabel true b a\n", "") + "1:a\n", "no class labels"),
        (HEADER.replace("false", "true") + "(0,1):a\n", "time stamps"),
        ("", "at least one series"),
    ],
)
def test_wrong_files_are_refused(tmp_path: Path, text: str, problem: str) -> None:
    with pytest.raises(DataError, match=problem):
        ts_series(write(tmp_path / "x.ts", text))


def test_missing_and_unlike_files_are_refused(tmp_path: Path) -> None:
    train = write(tmp_path / "x.ts", TRAIN)
    with pytest.raises(DataError, match="is not a file"):
        ts_series(str(tmp_path / "no.ts"))
    with pytest.raises(DataError, match=r"y\.ts has 1 channels and classes b, a, .*allowed: the same"):
        ts_series(train, write(tmp_path / "y.ts", HEADER + "1:a\n"))
    (tmp_path / "z.ts").write_bytes(b"\xff\xfe")
    with pytest.raises(DataError, match="cannot be read"):
        ts_series(str(tmp_path / "z.ts"))
