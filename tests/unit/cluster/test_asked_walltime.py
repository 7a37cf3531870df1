"""The end of a batch job: by its environment, or by one question to the batch system."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Sequence
from typing import Any

import pytest

from hpcbal.cluster import walltime
from hpcbal.cluster.walltime import answer_of, duration_s, end_of_job

NOW_S = 1_700_000_000.0


JOB_IDS = {"Slurm": "SLURM_JOB_ID", "PBS": "PBS_JOBID", "LSF": "LSB_JOBID", "Flux": "FLUX_JOB_ID"}


def end(
    environ: dict[str, str], answer: str, monkeypatch: pytest.MonkeyPatch
) -> tuple[float | None, list[str]]:
    """Seconds from now to the end, and the command that was run."""
    asked: list[str] = []

    def ask(command: Sequence[str]) -> str:
        asked.extend(command)
        return answer

    monkeypatch.setattr(time, "time", lambda: NOW_S)
    found = end_of_job(environ, NOW_S, ask)
    return None if found is None else found - NOW_S, asked


def test_nobody_is_asked_where_the_environment_says_it(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("SLURM_JOB_END_TIME", "HPCBAL_END_TIME"):
        environ = {"SLURM_JOB_ID": "7", name: str(int(NOW_S) + 9)}
        assert end(environ, "", monkeypatch) == (9.0, [])
    assert end({}, "", monkeypatch) == (None, [])


@pytest.mark.parametrize(
    ("system", "answer", "left_s"),
    [
        ("Slurm", "9:58\n", 598.0),
        ("Slurm", "1-02:00:00\n", 93600.0),
        ("Slurm", "10:00\n10:00\n", 600.0),  # two components
        ("Slurm", "UNLIMITED\n", None),
        ("Slurm", "INVALID\n", None),
        ("Slurm", "", None),
        ("LSF", "1:05 L\n", 3900.0),
        ("LSF", "-\n", None),
        ("Flux", "3480\n", 3480.0),
        ("Flux", "3480.6\n", 3480.0),
        ("Flux", "4294967295\n", None),
        ("PBS", "qstat: Unknown Job Id", None),
    ],
)
def test_a_batch_system_says_how_much_time_is_left(
    system: str, answer: str, left_s: float | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    found, asked = end({JOB_IDS[system]: "7"}, answer, monkeypatch)
    assert found == left_s
    assert asked[-1] == "7"


def test_pbs_says_when_a_job_began_and_how_long_it_may_take(monkeypatch: pytest.MonkeyPatch) -> None:
    began = time.strftime("%a %b %d %H:%M:%S %Y", time.localtime(NOW_S - 60))
    answer = f"Job Id: 7.pbs\n    resources_used.walltime = 00:00:58\n    stime = {began}\n"
    answer += "    Resource_List.walltime = 01:00:00\n"
    job = {"PBS_JOBID": "7.pbs", "PBS_WALLTIME": "100"}
    assert end(job, answer, monkeypatch) == (3540.0, ["qstat", "-f", "7.pbs"])
    assert end(job, "", monkeypatch)[0] == 100.0  # from this start: nobody says when the job began
    assert end(job, answer.replace(began, "yesterday"), monkeypatch)[0] == 100.0


@pytest.mark.parametrize(
    ("text", "seconds"), [("7", 7.0), ("1:07", 67.0), ("2-0:00:01", 172801.0), ("x", None)]
)
def test_durations_are_read(text: str, seconds: float | None) -> None:
    assert duration_s(text) == seconds


def test_a_command_that_is_missing_fails_or_hangs_says_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    assert answer_of(["hpcbal-no-such-command"]) == ""
    assert answer_of(["false"]) == ""
    assert answer_of(["echo", "9:58"]) == "9:58\n"

    def hangs(command: Sequence[str], **how: Any) -> None:
        raise subprocess.TimeoutExpired(command, how["timeout"])

    monkeypatch.setattr(walltime.subprocess, "run", hangs)
    assert answer_of(["squeue"]) == ""
