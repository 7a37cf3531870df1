"""hpcbal reads what the commands of PBS, LSF and Flux print, as their manuals show it.

None of these systems was at hand. Functions stand in for their commands, and refuse options that hpcbal
does not use.
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from typing import Any

import pytest

from hpcbal.cli.submitting.queue import JobInQueue, line_of, values_of
from hpcbal.cluster.systems import SYSTEMS, Phase, QueueState
from hpcbal.cluster.systems.job import GONE, Command, Done
from hpcbal.errors import ClusterError
from hpcbal.telemetry.files.batch_jobs import BatchRecord

FRIDAY = "Fri Nov 11 17:57:05 2016"
FRIDAY_S = time.mktime(time.strptime(FRIDAY, "%a %b %d %H:%M:%S %Y"))


def qstat(number: str = "12", **fields: Any) -> str:
    """`qstat -f` of OpenPBS, with the fields that matter; `__` stands for a dot."""
    values = {"Resource_List__walltime": "01:00:00", "Variable_List": "PBS_O_HOME=/home/me", **fields}
    lines = [f"    {name.replace('__', '.')} = {value}" for name, value in values.items()]
    return "\n".join([f"Job Id: {number}.pbs", "    Job_Name = nets", *lines, "", ""])


@pytest.mark.parametrize(
    ("printed", "state"),
    [
        (
            qstat(job_state="Q", comment="Not Running: Insufficient amount of re\n\tsource: ncpus"),
            (Phase.PENDING, "Q", "Not Running: Insufficient amount of resource: ncpus"),
        ),
        (
            qstat(job_state="Q", estimated__exec_vnode="(n1:ncpus=1)", estimated__start_time=FRIDAY),
            (Phase.PENDING, "Q", "", FRIDAY_S),
        ),
        (qstat(job_state="H", comment="job held"), (Phase.PENDING, "H", "job held")),
        (
            qstat(job_state="R", stime=FRIDAY, exec_host="n1/0*4+n2/0*4", comment="Job run at ..."),
            (Phase.RUNNING, "R", "", None, FRIDAY_S + 3600, None, "n1+n2"),
        ),
        (qstat(job_state="R", exec_host="n1/0"), (Phase.RUNNING, "R", "", None, None, None, "n1")),
        (qstat(job_state="F", Exit_status=75), (Phase.ENDED, "F", "", None, None, 75)),
        (qstat(job_state="F", Exit_status=271), (Phase.ENDED, "F", "", None, None, 143)),  # TERM
        (qstat(job_state="F", Exit_status=-11), (Phase.ENDED, "F")),  # lost its node
        (qstat(job_state="X", Exit_status=0), (Phase.ENDED, "X", "", None, None, 0)),  # of an array
    ],
)
def test_the_state_is_what_qstat_shows_by_its_manual(printed: str, state: tuple[object, ...]) -> None:
    assert SYSTEMS["pbs"].state_of(printed) == QueueState(*state)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("printed", "state"),
    [
        (
            "PEND|-|New job is waiting for scheduling;|-|-",
            (Phase.PENDING, "PEND", "New job is waiting for scheduling;"),
        ),
        ("PEND|-|Load: r1m|ut: 2 hosts;|-|-", (Phase.PENDING, "PEND", "Load: r1m|ut: 2 hosts;")),
        ("RUN|-|-|1:23 L|4*n1:4*n2", (Phase.RUNNING, "RUN", "", None, 4980.0, None, "4*n1:4*n2")),
        ("RUN|-|-|-|n1", (Phase.RUNNING, "RUN", "", None, None, None, "n1")),
        ("DONE|-|-|-|n1", (Phase.ENDED, "DONE", "", None, None, 0, "n1")),
        ("EXIT|75|-|-|n1", (Phase.ENDED, "EXIT", "", None, None, 75, "n1")),
    ],
)
def test_the_state_is_what_bjobs_shows_by_its_manual(
    printed: str, state: tuple[object, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(time, "time", lambda: 0.0)
    assert SYSTEMS["lsf"].state_of(f"12|0|{printed}|-\n") == QueueState(*state)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("system", "printed"),
    [("pbs", qstat(job_state="R", ctime=FRIDAY)), ("lsf", "12|0|RUN|-|-|-|n1|Nov 11 17:57")],
)
def test_when_a_job_was_submitted_is_told_where_its_script_cannot_know_its_first_start(
    system: str, printed: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """LSF prints no year: on 2 January, November is that of the year before."""
    for now_s in (FRIDAY_S, FRIDAY_S - 3600, FRIDAY_S + 52 * 86400):
        monkeypatch.setattr(time, "time", lambda now_s=now_s: now_s)
        found = SYSTEMS[system].state_of(printed).submitted_s
        assert found is not None
        assert FRIDAY_S - 60 < found <= FRIDAY_S


@pytest.mark.parametrize(
    ("job", "state"),
    [
        ({"state": "DEPEND", "dependencies": ["after-any=f1"]}, (Phase.PENDING, "DEPEND", "after-any=f1")),
        (
            {"state": "SCHED", "annotations": {"sched": {"t_estimate": 50.5, "reason_pending": "nodes"}}},
            (Phase.PENDING, "SCHED", "nodes", 50.5),
        ),
        (
            {"state": "RUN", "expiration": 100.5, "nodelist": "n[1-2]"},
            (Phase.RUNNING, "RUN", "", None, 100.5, None, "n[1-2]"),
        ),
        (
            {"state": "INACTIVE", "result": "FAILED", "returncode": 75, "t_inactive": 9.5, "nodelist": "n1"},
            (Phase.ENDED, "FAILED", "", None, 9.5, 75, "n1"),
        ),
        (
            {"state": "INACTIVE", "result": "CANCELED", "returncode": -128, "exception": {"note": "no"}},
            (Phase.ENDED, "CANCELED", "no"),
        ),
        (
            {"state": "INACTIVE", "result": "FAILED", "returncode": -15},
            (Phase.ENDED, "FAILED", "", None, None, 143),
        ),
    ],
)
def test_the_state_is_what_flux_jobs_shows_by_its_manual(job: object, state: tuple[object, ...]) -> None:
    assert SYSTEMS["flux"].state_of(json.dumps(job)) == QueueState(*state)  # type: ignore[arg-type]


QUESTIONS: Mapping[str, tuple[str, ...]] = {
    "slurm": ("scontrol", "--oneliner", "show", "job"),
    "pbs": ("qstat", "-x", "-f"),
    "lsf": (
        "bjobs",
        "-a",
        "-noheader",
        "-o",
        'jobid jobindex stat exit_code pend_reason time_left exec_host submit_time delimiter="|"',
    ),
    "flux": ("flux", "jobs", "--json"),
}


def ask_stand_in(system: str, done: Done) -> QueueState:
    """Ask a stand-in about job 12; it refuses other options than those of the system."""

    def run(command: Command) -> Done:
        if command.words[0] == "sacct":
            return Done(1, "", "Slurm accounting storage is disabled")
        assert command.words == (*QUESTIONS[system], "12"), "an option that it does not know"
        return done

    return SYSTEMS[system].ask(["12"], run)["12"]


def test_a_stand_in_of_lsf_is_asked_once_for_all_jobs() -> None:
    asked: list[tuple[str, ...]] = []

    def run(command: Command) -> Done:
        asked.append(command.words)
        printed = "12|1|RUN|-|-|0:20 L|n1|-\n12|2|EXIT|75|-|-|n1|-\n14|0|PEND|-|no slots|-|-|-\n"
        return Done(255, printed, "Job <15> is not found")

    jobs = ("12[1]", "12[2]", "14", "15")
    states = SYSTEMS["lsf"].ask(jobs, run)
    phases = [Phase.RUNNING, Phase.ENDED, Phase.PENDING, Phase.GONE]
    assert [states[job].phase for job in jobs] == phases
    assert (states["12[2]"].exit_code, states["14"].reason) == (75, "no slots")
    assert asked == [(*QUESTIONS["lsf"], *jobs)]


def test_a_stand_in_of_pbs_is_asked_once_for_all_jobs() -> None:
    asked: list[tuple[str, ...]] = []

    def run(command: Command) -> Done:
        asked.append(command.words)
        printed = qstat("12[1]", job_state="R") + qstat("12[2]", job_state="Q")
        return Done(153, printed, "qstat: Unknown Job Id 3.pbs\nqstat: 13.pbs Job has finished, use -x")

    jobs = ("12[1].pbs", "12[2].pbs", "3.pbs", "13.pbs", "14.pbs")
    states = SYSTEMS["pbs"].ask(jobs, run)
    phases = [Phase.RUNNING, Phase.PENDING, Phase.GONE, Phase.GONE, Phase.UNKNOWN]
    assert [states[job].phase for job in jobs] == phases
    assert asked == [(*QUESTIONS["pbs"], *jobs)]


def test_a_stand_in_of_pbs_that_keeps_no_history_is_asked_for_jobs_that_have_not_ended() -> None:
    def run(command: Command) -> Done:
        if "-x" in command.words:
            return Done(153, "", "qstat: PBS is not configured to maintain job history")
        return Done(153, qstat(job_state="R"), "qstat: Unknown Job Id 13.pbs")

    states = SYSTEMS["pbs"].ask(["12.pbs", "13.pbs"], run)
    assert [state.phase for state in states.values()] == [Phase.RUNNING, Phase.GONE]


@pytest.mark.parametrize(
    ("system", "code", "said"),
    [
        ("slurm", 1, "slurm_load_jobs error: Invalid job id specified"),
        ("pbs", 153, "qstat: Unknown Job Id 12.pbs"),
        ("pbs", 35, "qstat: 12.pbs Job has finished, use -x or -H to obtain historical job information"),
        ("lsf", 255, "Job <12> is not found"),
        ("flux", 1, "flux-jobs: ERROR: JobID 12 unknown"),
    ],
)
def test_a_stand_in_that_does_not_know_a_job_has_answered(system: str, code: int, said: str) -> None:
    assert ask_stand_in(system, Done(code, "", said)) == GONE


@pytest.mark.parametrize(
    ("system", "said"),
    [
        ("slurm", "slurm_load_jobs error: Unable to contact slurm controller (connect failure)"),
        ("pbs", "Connection refused\nqstat: cannot connect to server pbs (errno=111)"),
        ("lsf", "Failed in an LSF library call: Slave LIM configuration is not ready yet."),
        ("flux", "flux-jobs: ERROR: Unable to connect to Flux: No such file or directory"),
    ],
)
def test_a_stand_in_that_cannot_be_asked_is_no_unknown_job(system: str, said: str) -> None:
    try:
        state = ask_stand_in(system, Done(1, "", said))
    except ClusterError as error:
        state = QueueState(Phase.UNKNOWN, problem=str(error))
    shown = said.replace("\n", "; ")
    assert state == QueueState(Phase.UNKNOWN, problem=f"{QUESTIONS[system][0]} has ended with 1: {shown}")


@pytest.mark.parametrize(
    ("system", "printed"),
    [
        ("slurm", "x"),
        ("slurm", ""),
        ("slurm", "JobId=12 JobState=OF_A_LATER_SLURM Reason=None"),
        ("pbs", "Job Id: "),
        ("pbs", "<Data><Job>"),
        ("pbs", ""),
        ("pbs", qstat()),
        ("pbs", qstat(job_state="Z")),
        ("lsf", "12|0|RUN|-|-"),
        ("lsf", "12|0|RUN|-|-|1:23 L|n1|-|more"),
        ("lsf", "12|0|LATER|-|-|1:23 L|n1|-"),
        ("lsf", ""),
        ("flux", '{"state": "PENDING"}'),
        ("flux", '{"state": []}'),
        ("flux", "[]"),
        ("flux", ""),
    ],
)
def test_an_answer_that_is_not_understood_does_not_mean_that_a_job_is_over(system: str, printed: str) -> None:
    state = ask_stand_in(system, Done(0, printed, ""))
    assert state.phase is Phase.UNKNOWN
    assert state.problem.startswith("the scheduler has said ")
    assert state.problem.endswith(", which this hpcbal does not understand")
    assert len(state.problem) < 200


@pytest.mark.parametrize(
    ("system", "printed"),
    [
        ("slurm", "JobId=12 JobState=RUNNING EndTime=99999999999999999999 NodeList=n1"),
        ("slurm", f"JobId=12 JobState=PENDING StartTime={'9' * 400} NodeList="),
        ("slurm", f"JobId=12 JobState=FAILED ExitCode={'9' * 5000}:0 EndTime=1"),
        ("pbs", qstat(job_state="R", stime=FRIDAY, Resource_List__walltime="99999999999999999:00:00")),
        ("pbs", qstat(job_state="R", stime=FRIDAY, Resource_List__walltime="999999999:00:00")),
        ("lsf", f"12|0|RUN|-|-|{'9' * 20}:00 L|n1|Nov 31 25:00"),
        ("lsf", f"12|0|EXIT|{'9' * 5000}|-|-|n1|-"),
        ("flux", '{"state": "RUN", "expiration": 1e400}'),
        ("flux", '{"state": "RUN", "expiration": 1e18}'),
        ("flux", f'{{"state": "SCHED", "annotations": {{"sched": {{"t_estimate": {"9" * 400}}}}}}}'),
    ],
)
def test_a_time_that_no_calendar_has_is_no_time(system: str, printed: str) -> None:
    state = ask_stand_in(system, Done(0, printed, ""))
    assert state.phase is not Phase.UNKNOWN
    job = JobInQueue(BatchRecord(system, "12", 0.0, "/", "/s", "/l", 1, 1, 60.0), state)
    assert line_of(job, 0.0).startswith("job 12")
    assert (state.starts_s, state.until_s) == (None, 1.0 if "EndTime=1" in printed else None)
    assert json.dumps(values_of(job))


@pytest.mark.parametrize(
    ("printed", "number"),
    [
        ("ƒM7Zq9AKHno\n", "ƒM7Zq9AKHno"),
        ("forwarded\nfM7Zq9AKHno\n", "fM7Zq9AKHno"),
        ("flux-batch: 0 of 4\n", ""),
        ("f0O\n", ""),
    ],
)
def test_the_identifier_is_the_last_line_that_may_be_one(printed: str, number: str) -> None:
    assert SYSTEMS["flux"].number(printed) == number
