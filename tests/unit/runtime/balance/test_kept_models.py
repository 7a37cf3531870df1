"""A fitted model outlives its round, and a damaged file costs a warning, never the run."""

from __future__ import annotations

from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hpcbal.policies.batching.narx import NUM_INPUTS, NUM_WEIGHTS, Narx
from hpcbal.runtime.balance.speed_learning import FORMAT_VERSION, KeptModel

MODEL = Narx(
    np.zeros((2, NUM_INPUTS)),
    np.ones((2, NUM_INPUTS)),
    np.random.default_rng(0).standard_normal((2, NUM_WEIGHTS)),
    np.array([0.5, np.nan]),
    np.ones(2),
)
PARTS: dict[str, Any] = {part.name: getattr(MODEL, part.name) for part in fields(Narx)}


def test_what_is_kept_is_found_again(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    KeptModel(tmp_path / "dnns" / "a", (0, 3)).write(MODEL)
    found = KeptModel(tmp_path / "dnns" / "a", (0, 3)).read()
    assert found is not None
    for part in fields(Narx):
        np.testing.assert_array_equal(getattr(found, part.name), getattr(MODEL, part.name))
    assert caplog.text == ""


def test_other_groups_have_files_of_their_own(tmp_path: Path) -> None:
    assert KeptModel(tmp_path, (0, 3)).path != KeptModel(tmp_path, (3, 0)).path
    KeptModel(tmp_path, (0, 3)).write(MODEL)
    assert KeptModel(tmp_path, (1, 2)).read() is None


@pytest.mark.parametrize("place", [0.02, 0.3, 0.5, 0.7, 1.0])
def test_a_damaged_file_is_reported_and_ignored(
    place: float, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Torn at 0.02 to 0.7; at 1.0 a byte in the middle is another one."""
    kept = KeptModel(tmp_path, (0, 3))
    kept.write(MODEL)
    data = bytearray(kept.path.read_bytes())
    data[len(data) // 2] ^= 0xFF
    kept.path.write_bytes(data[: round(place * len(data))])
    assert kept.read() is None
    assert caplog.text.count("the speed model is ignored: ") == 1


@pytest.mark.parametrize(
    ("parts", "message"),
    [
        # As hpcbal wrote NARX models until it fitted them with NumPy.
        ({"note": np.array(["1", "narx"]), "hidden_weights": np.zeros((2, 8, 6))}, "it has format 1"),
        (PARTS | {"format": np.array(9)}, "it has format 9, this hpcbal reads format 2"),
        (PARTS | {"weights": np.zeros((2, 5))}, ""),
        (PARTS | {"weights": np.zeros((3, NUM_WEIGHTS))}, ""),
        (PARTS | {"speed_scale": np.array(["a", "b"])}, "could not convert"),
        (PARTS | {"more": np.zeros(2)}, "Narx.__init__() got an unexpected keyword argument 'more'"),
    ],
)
def test_a_file_that_is_no_model_of_today_is_reported_and_ignored(
    parts: dict[str, Any], message: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    kept = KeptModel(tmp_path, (0, 3))
    np.savez(kept.path, **{"format": np.array(FORMAT_VERSION), **parts} if "note" not in parts else parts)
    assert kept.read() is None
    assert caplog.text.count(f"the speed model is ignored: {message}") == 1


def test_a_model_of_another_group_is_ignored(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    kept = KeptModel(tmp_path, (0, 1, 2))
    kept.write(MODEL)
    assert kept.read() is None
    assert "ignored: narx: the model was fitted to 2 workers, but the history has 3" in caplog.text


def test_what_cannot_be_written_or_read_is_reported(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "a").write_text("a file, not a folder")
    kept = KeptModel(tmp_path / "a", (0, 1))
    kept.write(replace(MODEL))
    assert "the speed model is not saved" in caplog.text
    assert kept.read() is None
    assert "the speed model is ignored" in caplog.text
