"""The page at a run's end: there when all is well, and never in the way."""

from __future__ import annotations

import logging
import threading
from pathlib import Path

import pytest
from ledger_lines import a

from hpcbal.report.page import page
from hpcbal.runtime.record.final_report import write_final_report
from hpcbal.telemetry.files.run_directory import RunDirectory
from hpcbal.telemetry.ledger.file import Ledger
from hpcbal.telemetry.ledger.run import NodeFacts, RunStartedLine


@pytest.fixture
def run(tmp_path: Path) -> RunDirectory:
    run = RunDirectory(tmp_path)
    with Ledger(run.ledger) as ledger:
        ledger.append(a(RunStartedLine, name="birds", nodes=(NodeFacts("n", 1),)))
    return run


def test_the_page_is_written(run: RunDirectory, caplog: pytest.LogCaptureFixture) -> None:
    write_final_report(run)
    assert "birds" in run.report.read_text(encoding="utf-8")
    assert caplog.records == []


def test_files_without_content_are_a_line_in_the_log(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    write_final_report(RunDirectory(tmp_path))
    assert "no report was written" in caplog.text


@pytest.mark.parametrize("trouble", [KeyError("x"), MemoryError()])
def test_a_fault_of_the_page_is_a_line_in_the_log(
    trouble: Exception,
    run: RunDirectory,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    def fail(*_: object) -> None:
        raise trouble

    monkeypatch.setattr(page, "write_page", fail)
    write_final_report(run)
    (record,) = caplog.records
    assert record.levelno == logging.WARNING
    assert not run.report.exists()


def test_a_page_that_takes_too_long_is_left_out(
    run: RunDirectory, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    release = threading.Event()
    monkeypatch.setattr(page, "write_page", lambda *_: release.wait(30))
    write_final_report(run, deadline_s=0.05)
    release.set()
    assert f"hpcbal report {run.root}" in caplog.text
