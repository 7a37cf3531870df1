"""hpcbal reads what Slurm's commands print."""

from __future__ import annotations

import pytest

from hpcbal.cluster.systems import Phase, QueueState
from hpcbal.cluster.systems.job import GONE, Command, Done
from hpcbal.cluster.systems.slurm import SLURM, ask

# Slurm 22.05 with SLURM_TIME_FORMAT=%s; the fields between these are left out.
RUNNING = (
    "JobId=1 JobName=a b=c UserId=root(0) JobState=RUNNING Reason=None Dependency=(null) Restarts=0 "
    "ExitCode=0:0 RunTime=00:00:03 TimeLimit=00:20:00 SubmitTime=1796026825 StartTime=1796026825 "
    "EndTime=1796028025 ReqNodeList=(null) ExcNodeList=(null) NodeList=n1 BatchHost=n1 NumNodes=1 "
    "Command=/tmp/x y/batch.sh WorkDir=/tmp/x y Power= "
)
PENDING = (
    "JobId=2 JobState=PENDING Reason=PartitionConfig Dependency=(null) ExitCode=0:0 StartTime=Unknown "
    "EndTime=Unknown ReqNodeList=(null) NodeList= NumNodes=9"
)
REQUEUED = (
    "JobId=3 JobState=PENDING Reason=BeginTime Restarts=1 ExitCode=75:0 StartTime=1796029000 "
    "EndTime=1796030200 NodeList=(null)"
)
OVER = (
    "JobId=4 JobState=FAILED Reason=NonZeroExitCode ExitCode=75:0 StartTime=1796026825 EndTime=1796026900 "
    "NodeList=n[1-2]"
)
ENDED = (Phase.ENDED, "FAILED", "NonZeroExitCode", None, 1796026900.0, 75, "n[1-2]")


@pytest.mark.parametrize(
    ("printed", "state"),
    [
        (RUNNING, (Phase.RUNNING, "RUNNING", "", None, 1796028025.0, None, "n1")),
        (PENDING, (Phase.PENDING, "PENDING", "PartitionConfig")),
        (REQUEUED, (Phase.PENDING, "PENDING", "BeginTime", 1796029000.0)),
        (OVER, ENDED),
        (
            f"{OVER}\n{RUNNING.replace('JobId=1', 'JobId=4')}",
            (Phase.RUNNING, "RUNNING", "", None, 1796028025.0, None, "n1"),
        ),
        (f"{OVER}\n{OVER}", ENDED),
        (OVER.replace("75:0", "0:15"), (*ENDED[:5], 143, "n[1-2]")),
        (f"{OVER} Comment=ExitCode=9:0 WorkDir=/tmp/a JobState=PENDING ExitCode=9:0", ENDED),
    ],
)
def test_the_state_is_what_scontrol_shows(printed: str, state: tuple[object, ...]) -> None:
    assert SLURM.state_of(printed) == QueueState(*state)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("printed", "state"),
    [
        (
            "12|COMPLETED|0:0|1796026900|None|n1\n",
            (Phase.ENDED, "COMPLETED", "", None, 1796026900.0, 0, "n1"),
        ),
        (
            "12|CANCELLED|0:0|1796026000|Dependency|\n",
            (Phase.ENDED, "CANCELLED", "", None, 1796026000.0),
        ),
        (
            "12|CANCELLED by 0|0:0|1796026000|DependencyNeverSatisfied|\n",
            (Phase.ENDED, "CANCELLED", "DependencyNeverSatisfied", None, 1796026000.0),
        ),
        (
            "12|NODE_FAIL|0:0|1796026000|None|n2\n12|CANCELLED by 1000|0:15|1796026900|None|n1\n",
            (Phase.ENDED, "CANCELLED", "", None, 1796026900.0, 143, "n1"),
        ),
        ("12|RUNNING|0:0|Unknown|None|n1\n", (Phase.RUNNING, "RUNNING", "", None, None, None, "n1")),
    ],
)
def test_the_state_of_a_job_that_the_controller_has_forgotten(
    printed: str, state: tuple[object, ...]
) -> None:
    assert SLURM.state_of(printed) == QueueState(*state)  # type: ignore[arg-type]


def test_sacct_is_asked_only_for_jobs_that_scontrol_does_not_know() -> None:
    asked: list[tuple[str, ...]] = []

    def run(command: Command) -> Done:
        asked.append(command.words)
        assert command.environ == {"SLURM_TIME_FORMAT": "%s", "SLURM_BITSTR_LEN": "0"}
        if command.words[0] == "sacct":
            return Done(1, "", "Slurm accounting storage is disabled")
        return Done(0, RUNNING, "") if command.words[-1] == "1" else Done(1, "", "Invalid job id specified")

    states = ask(["1", "9_2"], run)
    assert [state.phase for state in states.values()] == [Phase.RUNNING, Phase.GONE]
    assert states["9_2"] == GONE
    assert [words[0] for words in asked] == ["scontrol", "scontrol", "sacct"]
    assert "--jobs=9_2" in asked[-1]


def test_all_tasks_of_an_array_are_asked_for_at_once() -> None:
    asked: list[tuple[str, ...]] = []
    lines = (
        "JobId=13 ArrayJobId=12 ArrayTaskId=1 JobState=RUNNING Reason=None EndTime=1796028025 NodeList=n1",
        "JobId=14 ArrayJobId=12 ArrayTaskId=2 JobState=FAILED Reason=NonZeroExitCode ExitCode=3:0",
        "JobId=12 ArrayJobId=12 ArrayTaskId=3-997,999%4 JobState=PENDING Reason=Resources",
    )
    known = "12_998|COMPLETED|0:0|1796026900|None|n1\n12_[1000-1001]|CANCELLED by 0|0:0|Unknown|None|\n"

    def run(command: Command) -> Done:
        asked.append(command.words)
        return Done(0, known if command.words[0] == "sacct" else "\n".join(lines), "")

    states = ask([f"12_{task}" for task in range(1, 1001)], run)
    assert asked[0] == ("scontrol", "--oneliner", "show", "job", "12")
    assert [words[0] for words in asked] == ["scontrol", "sacct"]
    assert "--jobs=12_998,12_1000" in asked[-1]
    assert (states["12_1"].phase, states["12_2"].exit_code) == (Phase.RUNNING, 3)
    assert {states[f"12_{task}"].phase for task in (3, 997, 999)} == {Phase.PENDING}
    assert (states["12_998"].word, states["12_1000"].word) == ("COMPLETED", "CANCELLED")
    assert len(states) == 1000


@pytest.mark.parametrize(
    ("printed", "number"),
    [
        ("12\n", "12"),
        ("12;cluster\n", "12"),
        ("sbatch: a remark of the site\n7\n", "7"),
        ("sbatch: error: 12\n", ""),
        ("", ""),
    ],
)
def test_the_number_is_the_line_that_has_nothing_else(printed: str, number: str) -> None:
    assert SLURM.number(printed) == number


def test_a_job_is_cancelled_or_asked_to_stop() -> None:
    assert SLURM.cancel(["1", "2_3"]).words == ("scancel", "1", "2_3")
    assert SLURM.signal("1").words == ("scancel", "--batch", "--signal=USR2", "1")
