"""`hpcbal resize`: writes what the job reads, and refuses what it could not use."""

from __future__ import annotations

from pathlib import Path

import pytest

from hpcbal.cli.main import main
from hpcbal.telemetry.views.ensemble_table import new_status
from hpcbal.telemetry.views.paramserver_status import ParamServerStatus, new_paramserver_status
from hpcbal.telemetry.views.status import end_status, write_status


def job(tmp_path: Path, ranks: int = 4) -> ParamServerStatus:
    status = new_paramserver_status("job", ranks)
    status["executors"] = [
        {"rank": rank, "role": "worker", "data_blocks": 1, "parameter_blocks": 0, "in_use": True}
        for rank in range(1, ranks + 1)
    ]
    write_status(tmp_path / "status.json", status)
    return status


def test_the_file_is_written_and_removed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    status = job(tmp_path)
    assert main(["resize", str(tmp_path), "2-4"]) == 0
    assert (tmp_path / "executors").read_text() == "2-4\n"
    assert capsys.readouterr().out == f"{tmp_path}: 3 of 4 executors, within seconds\n"
    assert main(["resize", str(tmp_path), "schedule"]) == 0
    assert not (tmp_path / "executors").exists()
    assert main(["resize", str(tmp_path), "schedule"]) == 0
    end_status(status, "done", 0)
    write_status(tmp_path / "status.json", status)
    capsys.readouterr()
    assert main(["resize", str(tmp_path), "all"]) == 0
    assert "4 of 4 executors, from its next start on" in capsys.readouterr().out


def test_what_the_job_could_not_use_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    job(tmp_path)
    assert main(["resize", str(tmp_path), "5"]) == 2
    assert "got '5', allowed: all, a number of executors from 2 to 4" in capsys.readouterr().err
    write_status(tmp_path / "status.json", new_paramserver_status("job", 4))
    assert main(["resize", str(tmp_path), "2"]) == 2
    assert "has not started yet; use executors.start" in capsys.readouterr().err
    write_status(tmp_path / "status.json", new_status("a", 2))
    assert main(["resize", str(tmp_path), "2"]) == 2
    assert "a run of DNNs, allowed: the output of a parameter-server job" in capsys.readouterr().err
    assert main(["resize", str(tmp_path / "nowhere"), "2"]) == 2
    assert "no such directory; give the output directory of a run" in capsys.readouterr().err
    assert not (tmp_path / "executors").exists()
