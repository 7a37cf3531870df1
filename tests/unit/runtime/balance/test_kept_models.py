"""A fitted model outlives its round, and a damaged file costs a warning, never the run."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from hpcbal.policies.batching.networks import Arima
from hpcbal.runtime.balance.speed_learning import KeptModel

MODEL = Arima(np.array([[0.1, 0.2], [0.3, 0.4]]), np.array([0.5, 0.6]))


def test_what_is_kept_is_found_again(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    KeptModel(tmp_path / "dnns" / "a", "arima", (0, 3)).write(MODEL)
    found = KeptModel(tmp_path / "dnns" / "a", "arima", (0, 3)).read()
    assert isinstance(found, Arima)
    np.testing.assert_array_equal(found.phi, MODEL.phi)
    assert caplog.text == ""


def test_other_groups_and_predictors_have_files_of_their_own(tmp_path: Path) -> None:
    paths = {
        KeptModel(tmp_path, *which).path for which in [("arima", (0, 3)), ("arima", (3, 0)), ("rnn", (0, 3))]
    }
    assert len(paths) == 3
    KeptModel(tmp_path, "arima", (0, 3)).write(MODEL)
    assert KeptModel(tmp_path, "arima", (1, 2)).read() is None


def test_a_damaged_file_is_reported_and_ignored(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    kept = KeptModel(tmp_path, "arima", (0, 3))
    kept.write(MODEL)
    data = bytearray(kept.path.read_bytes())
    data[len(data) // 2] ^= 0xFF
    kept.path.write_bytes(data)
    assert kept.read() is None
    assert "the speed model is ignored: it cannot be read" in caplog.text


def test_a_model_of_another_group_is_ignored(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    kept = KeptModel(tmp_path, "arima", (0, 1, 2))
    kept.write(MODEL)
    assert kept.read() is None
    assert "ignored: it was fitted by arima for 2 workers" in caplog.text


def test_what_cannot_be_written_or_read_is_reported(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "a").write_text("a file, not a folder")
    kept = KeptModel(tmp_path / "a", "arima", (0, 1))
    kept.write(MODEL)
    assert "the speed model is not saved" in caplog.text
    assert kept.read() is None
    assert "cannot be read" in caplog.text
