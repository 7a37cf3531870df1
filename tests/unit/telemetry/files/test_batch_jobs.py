"""The file of a run's batch jobs."""

from __future__ import annotations

import dataclasses
import errno
from pathlib import Path

import pytest

from hpcbal.errors import OutputError
from hpcbal.telemetry.claim.directory import check_output
from hpcbal.telemetry.files import batch_jobs
from hpcbal.telemetry.files.batch_jobs import BatchRecord, append_batch_job, note_over, read_batch_jobs

FIRST = BatchRecord(
    "slurm",
    "12",
    1.5,
    "/home/me",
    "/home/me/out/batch.sh",
    "/home/me/out/x.log",
    2,
    4,
    600,
    3,
    ("run", "ü y"),
)


def test_jobs_are_read_as_they_were_appended(tmp_path: Path) -> None:
    assert read_batch_jobs(tmp_path / "out") == []
    second = dataclasses.replace(FIRST, id="13", why=("because",))
    append_batch_job(tmp_path / "out", FIRST)
    append_batch_job(tmp_path / "out", second)
    assert read_batch_jobs(tmp_path / "out") == [FIRST, second]


def test_a_job_that_continues_another_is_known_by_its_number_alone(tmp_path: Path) -> None:
    append_batch_job(tmp_path, FIRST)
    with (tmp_path / "batch.jsonl").open("a") as file:
        file.write('{"id": "14", "continues": "12"}\n{"id": "15", "continues": "not known"}\n{"id": ')
    assert read_batch_jobs(tmp_path) == [FIRST, dataclasses.replace(FIRST, id="14", continues="12")]


@pytest.mark.parametrize(
    "line",
    [
        '{"id": 5, "continues": "12"}',
        '{"id": "13", "continues": "12", "time_s": "600"}',
        '{"id": "13", "continues": "12", "time_s": NaN}',
        '{"id": "13", "continues": "12", "num_nodes": true}',
        '{"id": "13", "continues": "12", "words": "run"}',
        '{"id": "13", "continues": "12", "words": [1]}',
        '{"id": "13", "continues": ["12"]}',
        '{"id": "13", "continues": "12", "format": 2}',
        '{"id": null, "continues": "12"}',
        "[1]",
    ],
)
def test_a_line_that_is_damaged_or_of_another_version_is_no_job(tmp_path: Path, line: str) -> None:
    append_batch_job(tmp_path, FIRST)
    with (tmp_path / "batch.jsonl").open("a") as file:
        file.write(f"{line}\n")
    assert read_batch_jobs(tmp_path) == [FIRST]


def test_a_number_that_recurs_is_that_of_the_last_job(tmp_path: Path) -> None:
    second = dataclasses.replace(FIRST, id="13")
    for record in (FIRST, second):
        append_batch_job(tmp_path, record)
    note_over(tmp_path, ["12", "7"])
    over = dataclasses.replace(FIRST, is_over=True)
    assert read_batch_jobs(tmp_path) == [over, second]
    with (tmp_path / "batch.jsonl").open("a") as file:
        file.write('{"id": "14", "continues": "12"}\n')
    append_batch_job(tmp_path, FIRST)
    assert read_batch_jobs(tmp_path) == [
        second,
        dataclasses.replace(FIRST, id="14", continues="12"),
        FIRST,
    ]


def test_a_run_may_start_where_its_job_was_noted(tmp_path: Path) -> None:
    append_batch_job(tmp_path, FIRST)
    for name in ("batch.sh", "batch.cancel", "batch-2.sh", "batch-2.cancel"):
        (tmp_path / name).touch()
    assert not check_output(tmp_path, "name: a\n").resumed


def test_who_may_not_read_is_not_told_to_write_elsewhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(path: Path) -> None:
        raise PermissionError(errno.EACCES, "Permission denied", str(path))

    monkeypatch.setattr(batch_jobs, "read_json_lines", refuse)
    with pytest.raises(OutputError, match=r"cannot read: Permission denied \(no permission to read it: ask"):
        read_batch_jobs(tmp_path)


def test_a_file_where_the_directory_should_be_is_an_error_for_users(tmp_path: Path) -> None:
    (tmp_path / "out").touch()
    with pytest.raises(OutputError, match="out"):
        append_batch_job(tmp_path / "out", FIRST)
    with pytest.raises(OutputError, match="cannot read"):
        read_batch_jobs(tmp_path / "out")
