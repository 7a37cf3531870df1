"""How the status of many parameter-server jobs is shown."""

from __future__ import annotations

from pathlib import Path

from hpcbal.telemetry.views.paramserver_status import JobsStatus, PsJobStatus, new_jobs_status
from hpcbal.telemetry.views.read_status import read_status, render_status
from hpcbal.telemetry.views.status import write_status

NOW = 1_700_000_000.0


def job(name: str, state: str, epochs: int, value: float | None, cause: str = "") -> PsJobStatus:
    return {
        "name": name,
        "state": state,
        "epochs": epochs,
        "max_epochs": 4,
        "metrics": {} if value is None else {"loss": value},
        "wall_time_s": 75.0,
        "slot_seconds": 150.0,
        "cause": cause,
        "detail": "ValueError: a is not finite\nmore" if cause else "",
        "main_metric": "loss",
        "best": value,
    }


def a_status(*jobs: PsJobStatus) -> JobsStatus:
    status = new_jobs_status("many", 4, now=NOW)
    status["jobs"] = list(jobs)
    return status


def test_jobs_and_the_groups_that_share_machines_are_listed() -> None:
    status = a_status(job("a", "done", 4, 0.25), job("b", "running", 1, 0.5), job("c", "waiting", 0, None))
    status["phase"] = "training"
    status["groups"] = [
        {"jobs": ["b", "c"], "machines": [1, 2], "predicted_s": 1.25, "measured_s": None},
    ]
    lines = render_status(status, now=NOW).splitlines()
    assert "1 of 3 jobs done" in lines[0]
    assert "3 jobs: 1 done, 1 running, 1 waiting" in lines
    rows = [line.split() for line in lines]
    assert ["a", "done", "4/4", "loss", "0.2500", "0.2500", "0:01:15"] in rows
    assert ["c", "waiting", "0/4", "loss", "-", "-", "0:01:15"] in rows
    assert ["b", "c", "1", "2", "-", "1.2500", "s"] in rows


def test_a_job_that_failed_shows_its_cause_and_others_none() -> None:
    lines = render_status(a_status(job("a", "failed", 2, 0.5, "error"), job("b", "running", 1, 0.5)), now=NOW)
    (failed,) = [line for line in lines.splitlines() if line.startswith("a ")]
    assert failed.endswith("error: ValueError: a is not finite")


def test_before_any_job_there_is_nothing_to_list() -> None:
    assert "no jobs yet" in render_status(a_status(), now=NOW)


def test_the_file_is_read_as_it_was_written(tmp_path: Path) -> None:
    status = a_status(job("a", "running", 1, 0.5))
    status["groups"] = [{"jobs": ["a"], "machines": [1], "predicted_s": None, "measured_s": 0.5}]
    write_status(tmp_path / "status.json", status)
    assert read_status(tmp_path) == status
