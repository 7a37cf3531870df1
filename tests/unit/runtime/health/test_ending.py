"""The error that ends a job is reported once, by `hpcbal run` if it has started the ranks."""

from __future__ import annotations

import io
import socket
from pathlib import Path
from typing import cast

import pytest

from hpcbal.errors import OutputError
from hpcbal.runtime.handoff.launch_dir import launch_directory
from hpcbal.runtime.handoff.start_file import LAUNCH_DIR, StartFile
from hpcbal.runtime.health.ending import JobEnder
from hpcbal.runtime.health.liveness import Liveness
from hpcbal.telemetry.streams.rank_log import configure_rank_logging

WHO = f"rank 0 on {socket.gethostname()} ends the job: "


class World:
    rank = 0
    code = 0

    def Abort(self, code: int) -> None:  # noqa: N802 - as in MPI
        self.code = code


def end_for(error: Exception, folder: Path) -> str:
    """End the job for this error; returns what the console of rank 0 shows."""
    world, console = World(), io.StringIO()
    told = str(error) if isinstance(error, OutputError) else f"{type(error).__name__}: {error}"
    with configure_rank_logging(folder, 0, "here", stream=console):
        JobEnder(cast("object", world), Liveness()).abort_for(error)  # type: ignore[arg-type]
    assert world.code in (1, 2)
    assert f"{WHO}{told}" in (folder / "logs" / "rank-000.log").read_text(encoding="utf-8")
    return console.getvalue()


def test_a_rank_of_another_launcher_reports_itself(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(LAUNCH_DIR, raising=False)
    assert end_for(OutputError("x: gone"), tmp_path) == f"hpcbal: error: {WHO}x: gone\n"


def test_hpcbal_run_reports_behind_what_mpirun_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with launch_directory() as (directory, _):
        monkeypatch.setenv(LAUNCH_DIR, str(directory))
        assert end_for(OutputError("x: gone"), tmp_path) == ""
        facts = StartFile(directory).read()
    assert (facts.last_words, facts.abort_code) == (f"{WHO}x: gone", 2)


def test_a_traceback_is_shown_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with launch_directory() as (directory, _):
        monkeypatch.setenv(LAUNCH_DIR, str(directory))
        try:
            raise ZeroDivisionError("a bug")
        except ZeroDivisionError as error:
            shown = end_for(error, tmp_path)
        facts = StartFile(directory).read()
    assert "ZeroDivisionError: a bug" in shown
    assert facts.last_words == f"{WHO}ZeroDivisionError: a bug"
