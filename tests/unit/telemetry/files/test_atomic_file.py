"""Files are replaced whole or not at all."""

import json
import os

import pytest

from hpcbal.errors import OutputError
from hpcbal.telemetry.files import atomic_file
from hpcbal.telemetry.files.atomic_file import write_atomic, write_json_atomic


@pytest.mark.parametrize("durable", [False, True])
def test_the_content_is_replaced_and_nothing_else_left(tmp_path, durable):
    for content in ("old", "new"):
        write_atomic(tmp_path / "file", content, durable=durable)
    assert (tmp_path / "file").read_text() == "new"
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_json_is_strict(tmp_path):
    write_json_atomic(tmp_path / "file.json", {"a": float("inf"), "b": (1, 2)})
    assert json.loads((tmp_path / "file.json").read_text()) == {"a": None, "b": [1, 2]}


def test_on_a_full_disk_the_old_content_stays(tmp_path, monkeypatch):
    write_atomic(tmp_path / "file", "old")
    monkeypatch.setattr(atomic_file, "create_new", lambda path: open("/dev/full", "wb"))  # noqa: SIM115
    with pytest.raises(OutputError, match=r"file: cannot write: No space left .*\(of a run: --output\)"):
        write_atomic(tmp_path / "file", "new")
    assert (tmp_path / "file").read_text() == "old"
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_a_directory_without_fsync_is_no_error(tmp_path, monkeypatch):
    real = os.fsync

    def refuse_directories(descriptor):
        if os.fstat(descriptor).st_mode & 0o040000:
            raise OSError(22, "Invalid argument")
        real(descriptor)

    monkeypatch.setattr(os, "fsync", refuse_directories)
    write_atomic(tmp_path / "file", "new", durable=True)
    assert (tmp_path / "file").read_text() == "new"
