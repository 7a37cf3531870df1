"""The end of a batch job: by its environment, or by one question to the batch system."""

from __future__ import annotations

import time

import pytest

from hpcbal.cluster import walltime
from hpcbal.cluster.started import BatchJob
from hpcbal.cluster.systems.job import Command, Done
from hpcbal.cluster.walltime import end_by_system, end_of_job
from hpcbal.errors import ClusterError

NOW_S = 1_700_000_000.0
BEGAN = time.strftime("%a %b %d %H:%M:%S %Y", time.localtime(NOW_S - 60))
QSTAT = (
    f"Job Id: 7.pbs\n    job_state = R\n    resources_used.walltime = 00:00:58\n    stime = {BEGAN}\n"
    "    Resource_List.walltime = 01:00:00\n"
)


def test_nobody_is_asked_where_the_environment_says_it() -> None:
    def ask(job: BatchJob) -> float | None:
        raise AssertionError(job)

    for name in ("SLURM_JOB_END_TIME", "HPCBAL_END_TIME"):
        assert end_of_job({"SLURM_JOB_ID": "7", name: "9"}, NOW_S, ask) == 9.0
    assert end_of_job({}, NOW_S, ask) is None


@pytest.mark.parametrize(
    ("system", "answer", "left_s"),
    [
        ("Slurm", f"JobId=7 JobState=RUNNING EndTime={NOW_S + 598:.0f} NodeList=n1\n", 598.0),
        ("Slurm", f"JobId=7 JobState=RUNNING EndTime={NOW_S + 9:.0f}\n" * 2, 9.0),  # two components
        ("Slurm", "JobId=7 JobState=RUNNING EndTime=Unknown\n", None),
        ("Slurm", "", None),
        ("LSF", "7|0|RUN|-|-|1:05 L|n1|Nov 11 17:57\n", 3900.0),
        ("LSF", "7|0|RUN|-|-|-|n1|-\n", None),
        ("Flux", f'{{"state": "RUN", "expiration": {NOW_S + 3480}}}', 3480.0),
        ("Flux", '{"state": "RUN", "expiration": 0.0}', None),
        ("PBS", QSTAT, 3540.0),
        ("PBS", QSTAT.replace(BEGAN, "yesterday"), None),
    ],
)
def test_a_batch_system_says_when_a_job_ends(
    system: str, answer: str, left_s: float | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[Command] = []

    def run(command: Command, timeout_s: float) -> Done:
        asked.append(command)
        return Done(0, answer, "")

    monkeypatch.setattr(walltime, "run_command", run)
    monkeypatch.setattr(time, "time", lambda: NOW_S)
    found = end_by_system(BatchJob(system, "7"))
    assert (None if found is None else found - NOW_S) == left_s
    assert [command.words[-1] for command in asked] == ["7"]


@pytest.mark.parametrize("system", ["Slurm", "PBS", "LSF", "Flux"])
def test_a_command_that_is_missing_hangs_or_fails_says_nothing(
    system: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(command: Command, timeout_s: float) -> Done:
        if timeout_s == walltime.ASKING_S:
            raise ClusterError(f"{command.words[0]}: no such command on PATH")
        return Done(1, QSTAT, "")

    monkeypatch.setattr(walltime, "run_command", fail)
    assert end_by_system(BatchJob(system, "7")) is None
    monkeypatch.setattr(walltime, "run_command", lambda command, timeout_s: Done(1, QSTAT, ""))
    assert end_by_system(BatchJob(system, "7")) is None


def test_a_job_whose_start_nobody_knows_lasts_from_now_on() -> None:
    job = {"PBS_JOBID": "7.pbs", "PBS_WALLTIME": "100"}
    assert end_of_job(job, NOW_S, lambda job: None) == NOW_S + 100
    assert end_of_job(job, NOW_S, lambda job: NOW_S + 3540) == NOW_S + 3540
