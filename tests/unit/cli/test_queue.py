"""`hpcbal status` and `hpcbal cancel` with batch jobs, whose scheduler a function stands in for."""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from hpcbal.cli import main
from hpcbal.cli.submitting import cancelling, queue
from hpcbal.cli.submitting.cancelling import Act, act_on
from hpcbal.cli.submitting.queue import (
    JobInQueue,
    QueueWatch,
    jobs_in_queue,
    line_of,
    shown_jobs,
    unsettled_jobs,
)
from hpcbal.cluster.systems.commands import run_command
from hpcbal.cluster.systems.job import Command, Done, Phase, QueueState
from hpcbal.errors import ClusterError
from hpcbal.telemetry.files.batch_jobs import BatchRecord, append_batch_job, note_over, read_batch_jobs
from hpcbal.telemetry.views.ensemble_table import new_status
from hpcbal.telemetry.views.status import write_status

Capture = pytest.CaptureFixture[str]
NOON = time.mktime((2026, 11, 30, 12, 0, 0, 0, 0, -1))
RECORD = BatchRecord(
    "slurm", "12", NOON - 600, "/home/me", "/r/batch.sh", "/r/hpcbal-12.log", 1, 3, 3600.0, 4
)


class Scheduler:
    """Stands in for Slurm's commands: the fields that `scontrol` shows of each job, and what was asked."""

    def __init__(self, jobs: Mapping[str, str], config: str = "") -> None:
        self.jobs = dict(jobs)
        self.config = config
        self.asked: list[tuple[str, ...]] = []

    def __call__(self, command: Command) -> Done:
        self.asked.append(command.words)
        if command.words[0] == "sacct":
            return Done(1, "", "Slurm accounting storage is disabled")
        if command.words == ("scontrol", "show", "config"):
            return Done(0, f"Configuration data as of now\n{self.config}\n", "")
        assert command.words[:4] == ("scontrol", "--oneliner", "show", "job"), (
            "an option that it does not know"
        )
        fields = self.jobs.get(command.words[4])
        if fields is None:
            return Done(1, "", "slurm_load_jobs error: Invalid job id specified")
        return Done(0, f"JobId={command.words[4]} {fields}\n", "")


def dead(command: Command) -> Done:
    raise ClusterError(
        f"{command.words[0]}: no answer within 10 s; the scheduler is busy or down, try again later"
    )


def job(phase: Phase, *facts: object, **more: object) -> JobInQueue:
    return JobInQueue(RECORD, QueueState(phase, *facts, **more))  # type: ignore[arg-type]


def asked(directory: Path, run: Callable[[Command], Done]) -> list[JobInQueue]:
    return jobs_in_queue(unsettled_jobs(directory), run)


@pytest.mark.parametrize(
    ("given", "line"),
    [
        (job(Phase.PENDING), "pending"),
        (job(Phase.PENDING, "PENDING", "Resources"), "pending, Resources"),
        (
            job(Phase.PENDING, "PENDING", "Priority", NOON + 3600),
            "pending, Priority, expected to start at 2026-11-30 13:00",
        ),
        (job(Phase.PENDING, "PENDING", "BeginTime", NOON - 1), "pending, BeginTime"),
        (
            job(Phase.RUNNING, "RUNNING", until_s=NOON + 4980, nodes="n[1-2]"),
            "running on n[1-2], until 2026-11-30 13:23 (1:23:00 left)",
        ),
        (job(Phase.RUNNING, "RUNNING"), "running"),
        (
            job(Phase.ENDED, "FAILED", "NonZeroExitCode", None, NOON, 75),
            "ended, FAILED, exit code 75, at 2026-11-30 12:00",
        ),
        (job(Phase.ENDED, "TIMEOUT", "TimeLimit"), "ended, TIMEOUT (TimeLimit)"),
        (job(Phase.GONE), "no longer known to the scheduler"),
        (job(Phase.UNKNOWN, problem="it has said 'x'"), "its state is not known: it has said 'x'"),
    ],
)
def test_a_job_is_one_line(given: JobInQueue, line: str) -> None:
    assert line_of(given, NOON) == f"job 12 (Slurm): {line}"


def test_the_last_job_is_shown_and_those_that_are_not_over() -> None:
    ended, running, pending = job(Phase.ENDED), job(Phase.RUNNING), job(Phase.PENDING)
    unknown = job(Phase.UNKNOWN)
    assert shown_jobs([unknown, ended]) == [unknown, ended]
    assert shown_jobs([]) == []
    assert shown_jobs([ended, ended]) == [ended]
    assert shown_jobs([running, pending]) == [running, pending]
    assert shown_jobs([ended, pending]) == [pending]


def test_all_jobs_are_asked_for_that_may_not_have_ended(tmp_path: Path) -> None:
    """Those are left out that have ended as the file says, or are continued by a job that is continued."""
    for number, before in (("1", ""), ("2", ""), ("3", ""), ("4", "3"), ("5", "4"), ("6", "")):
        append_batch_job(tmp_path, replace(RECORD, id=number, continues=before))
    note_over(tmp_path, ["1", "6"])
    scheduler = Scheduler({"2": "JobState=RUNNING", "5": "JobState=PENDING Reason=Priority"})
    found = asked(tmp_path, scheduler)
    assert [each.record.id for each in found] == ["2", "4", "5", "6"]
    assert [each.phase for each in found] == [Phase.RUNNING, Phase.GONE, Phase.PENDING, Phase.GONE]


def test_a_scheduler_that_does_not_answer_is_asked_once_and_makes_a_line(tmp_path: Path) -> None:
    commands: list[Command] = []

    def run(command: Command) -> Done:
        commands.append(command)
        return dead(command)

    for number in ("1", "2"):
        append_batch_job(tmp_path, replace(RECORD, id=number))
    append_batch_job(tmp_path, replace(RECORD, id="3", system="maui"))
    (first, before, last) = asked(tmp_path, run)
    assert len(commands) == 1
    assert first.state == before.state
    assert line_of(before, NOON) == (
        "job 2 (Slurm): its state is not known: scontrol: no answer within 10 s; the scheduler is busy or "
        "down, try again later"
    )
    assert (
        line_of(last, NOON)
        == "job 3 (maui): its state is not known: this hpcbal knows no batch system 'maui'"
    )


def test_a_job_that_a_scheduler_does_not_know_is_asked_for_again(tmp_path: Path) -> None:
    """The one that has answered may be that of another cluster, or has just started."""
    for number in ("1", "2"):
        append_batch_job(tmp_path, replace(RECORD, id=number))
    assert {each.phase for each in asked(tmp_path, Scheduler({}))} == {Phase.GONE}
    again = asked(tmp_path, Scheduler({"1": "JobState=RUNNING", "2": "JobState=PENDING"}))
    assert [each.phase for each in again] == [Phase.RUNNING, Phase.PENDING]


@pytest.mark.parametrize("here", ["ClusterName             = mine", "ClusterName = other", ""])
def test_a_job_of_another_cluster_is_not_asked_for(tmp_path: Path, here: str) -> None:
    append_batch_job(tmp_path, replace(RECORD, cluster="mine"))
    scheduler = Scheduler({"12": "JobState=COMPLETED"}, here)
    (found,) = asked(tmp_path, scheduler)
    if "other" not in here:
        assert found.phase is Phase.ENDED
        return
    assert line_of(found, NOON) == (
        "job 12 (Slurm): its state is not known: it is a job of cluster mine, and other answers here; ask "
        "there"
    )
    (cancelled,) = cancelling.cancel([tmp_path], at_once=True, run=scheduler)
    assert cancelled.has_failed
    assert {words[:3] for words in scheduler.asked} == {("scontrol", "show", "config")}


def test_a_watch_asks_now_and_then(tmp_path: Path) -> None:
    append_batch_job(tmp_path, RECORD)
    scheduler, now = Scheduler({"12": "JobState=RUNNING"}), [0.0]
    watch = QueueWatch(tmp_path, 30.0, scheduler, lambda: now[0])
    for now[0] in (0.0, 2.0, 29.0, 31.0):
        assert [each.phase for each in watch.jobs()] == [Phase.RUNNING]
    assert len(scheduler.asked) == 2


SCONTROL = """
[[ "$1 $2 $3" == "--oneliner show job" && $# == 4 ]] || { echo "scontrol: unrecognized option" >&2; exit 64; }
found=
for job in "jobs/$4" "jobs/$4"_*; do
  [[ -e $job ]] || continue
  found=yes name=${job#jobs/} array=
  [[ $name != *_* ]] || array="ArrayJobId=${name%_*} ArrayTaskId=${name#*_} "
  echo "JobId=$name $array$(head -n 1 "$job")"
  if (($(wc -l <"$job") > 1)); then sed -i 1d "$job"; fi
done
[[ $found ]] || { echo "slurm_load_jobs error: Invalid job id specified" >&2; exit 1; }
"""
SCANCEL = """
case "$1 $2" in
  "--batch --signal=USR2") [[ $# == 3 ]] || exit 64 ;;
  -*) echo "scancel: unrecognized option '$1'" >&2; exit 64 ;;
esac
[[ ! -e refused ]] || { cat refused >&2; exit 1; }
"""
RUNNING, PENDING = "JobState=RUNNING NodeList=n1", "JobState=PENDING Reason=BeginTime"
FAILED = "JobState=FAILED Reason=NonZeroExitCode ExitCode=75:0"
Site = Callable[..., Path]


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Site:
    """Stand-ins for Slurm's commands, and runs with a job each, whose states come one after the other."""
    (tmp_path / "bin").mkdir()
    (tmp_path / "jobs").mkdir()
    for tool in ("cat", "head", "sed", "sleep", "wc"):
        (tmp_path / "bin" / tool).symlink_to(str(shutil.which(tool)))
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))  # without a Slurm that is installed here
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(cancelling, "SECOND_LOOK_S", 0.0)
    for name, text in (("scontrol", SCONTROL), ("scancel", SCANCEL), ("sacct", "exit 1")):
        path = tmp_path / "bin" / name
        path.write_text(f'#!/bin/bash\necho "{name} $*" >>calls\n{text}')
        path.chmod(0o755)

    def with_job(*states: str, number: str = "12", run: str = "a") -> Path:
        append_batch_job(Path(run), replace(RECORD, id=number))
        if states:
            (tmp_path / "jobs" / number).write_text("".join(f"{state}\n" for state in states))
        return Path(run)

    return with_job


def test_all_questions_together_have_one_limit(site: Site) -> None:
    now_s = 100.0
    run = queue.within(10.0, lambda: now_s)
    site(RUNNING)
    question = Command(("scontrol", "--oneliner", "show", "job", "12"))
    assert run(question).code == 0
    now_s = 110.0
    with pytest.raises(ClusterError, match="scontrol: no answer within 10 s, with the questions before it"):
        run(question)


def cancels() -> list[str]:
    calls = Path("calls").read_text().splitlines()
    return [call.removeprefix("scancel ") for call in calls if call.startswith("scancel")]


def test_status_of_a_run_that_waits_for_its_first_start(site: Site, capsys: Capture) -> None:
    site(PENDING)
    assert main(["status", "a"]) == 0
    assert capsys.readouterr().out == "a: has not begun\n\njob 12 (Slurm): pending, BeginTime\n"
    assert main(["status", "a", "--json"]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert shown["phase"] == "submitted"
    (row,) = shown["batch_jobs"]
    assert (row["id"], row["phase"], row["reason"], row["max_restarts"]) == ("12", "pending", "BeginTime", 4)


def test_status_of_a_job_that_ended_before_its_run_began_names_its_log(site: Site, capsys: Capture) -> None:
    site(FAILED)
    assert main(["status", "a"]) == 0
    shown = capsys.readouterr().out
    assert shown.startswith("a: has not begun\n\njob 12 (Slurm): ended, FAILED, exit code ")
    assert shown.endswith("\nlog: /r/hpcbal-12.log\n")


def test_a_damaged_status_does_not_hide_the_queue(site: Site, capsys: Capture) -> None:
    (site(RUNNING) / "status.json").write_text("{")
    assert main(["status", "a"]) == 2
    shown, said = capsys.readouterr()
    assert shown == "job 12 (Slurm): running on n1\n"
    assert "status.json: not a status file of hpcbal" in said
    assert main(["status", "a", "--json"]) == 2
    values = json.loads(capsys.readouterr().out)
    assert (values["batch_jobs"][0]["phase"], "status.json" in values["problem"]) == ("running", True)


def test_status_shows_the_queue_beside_the_run(site: Site, capsys: Capture) -> None:
    write_status(site(RUNNING) / "status.json", new_status("demo", 4))
    assert main(["status", "a"]) == 0
    shown = capsys.readouterr().out
    assert shown.startswith("demo: starting")
    assert shown.endswith("\n\njob 12 (Slurm): running on n1\n")
    assert main(["status", "a", "--json"]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert (shown["name"], shown["batch_jobs"][0]["nodes"]) == ("demo", "n1")


@pytest.mark.parametrize(
    ("state", "advice"), [(PENDING, "its batch job continues"), (FAILED, "run the same command")]
)
def test_a_run_that_its_job_continues_needs_nobody(
    site: Site, state: str, advice: str, capsys: Capture
) -> None:
    status = new_status("demo", 4)
    status |= {"phase": "suspended", "outcome": "suspended", "exit_code": 75}
    write_status(site(state) / "status.json", status)
    assert main(["status", "a"]) == 0
    assert advice in capsys.readouterr().out


def test_status_without_a_scheduler_is_the_status_of_the_run(site: Site, capsys: Capture) -> None:
    write_status(site() / "status.json", new_status("demo", 4))
    Path("bin/scontrol").unlink()
    assert main(["status", "a"]) == 0
    shown = capsys.readouterr().out
    assert shown.startswith("demo: starting")
    assert "job 12 (Slurm): its state is not known: scontrol: no such command on PATH" in shown


def test_status_gives_up_a_scheduler_that_hangs(site: Site) -> None:
    site()
    Path("bin/scontrol").write_text("#!/bin/bash\nexec sleep 60\n")
    watch = QueueWatch(Path("a"), run=partial(run_command, timeout_s=0.2))
    assert "scontrol: no answer within 0 s" in line_of(watch.jobs()[0], NOON)


def test_watching_lasts_until_no_job_continues_the_run(
    site: Site, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = site(PENDING, RUNNING, PENDING, RUNNING, FAILED)
    pauses: list[float] = []

    def sleep(seconds: float) -> None:
        pauses.append(seconds)
        status = new_status("demo", 4)
        if len(pauses) > 1:
            status |= {"phase": "suspended", "outcome": "suspended", "exit_code": 75}
        write_status(run / "status.json", status)

    monkeypatch.setattr(time, "sleep", sleep)
    monkeypatch.setattr(queue, "INTERVAL_S", 0.0)
    assert main(["status", "a", "--watch", "--json"]) == 0
    phases = [json.loads(line)["batch_jobs"][0]["phase"] for line in capsys.readouterr().out.splitlines()]
    assert phases == ["pending", "running", "pending", "running", "ended"]


@pytest.mark.parametrize(("is_here", "num_looks"), [(True, 3), (False, 1)])
def test_watching_outlasts_a_scheduler_that_does_not_answer_once(
    site: Site, capsys: Capture, monkeypatch: pytest.MonkeyPatch, is_here: bool, num_looks: int
) -> None:
    site("garbled", RUNNING, FAILED)
    if is_here:
        Path("bin/sbatch").symlink_to("/bin/true")
    monkeypatch.setattr(time, "sleep", lambda seconds: None)
    monkeypatch.setattr(queue, "INTERVAL_S", 0.0)
    assert main(["status", "a", "--watch", "--json"]) == 0
    phases = [json.loads(line)["batch_jobs"][0]["phase"] for line in capsys.readouterr().out.splitlines()]
    assert phases == ["unknown", "running", "ended"][:num_looks]


def test_a_run_without_a_batch_job_asks_nobody(site: Site, tmp_path: Path, capsys: Capture) -> None:
    Path("b").mkdir()
    write_status(Path("b/status.json"), new_status("demo", 4))
    assert main(["status", "b"]) == 0
    assert "job" not in capsys.readouterr().out
    assert not Path("calls").exists()


@pytest.mark.parametrize(
    ("phase", "acts"),
    [
        (Phase.PENDING, (Act.REMOVE, Act.REMOVE)),
        (Phase.RUNNING, (Act.STOP, Act.KILL)),
        (Phase.ENDED, (Act.NOTHING, Act.NOTHING)),
        (Phase.GONE, (Act.NOTHING, Act.NOTHING)),
        (Phase.UNKNOWN, (Act.STOP, Act.KILL)),
    ],
)
def test_a_job_is_cancelled_by_where_it_is(phase: Phase, acts: tuple[Act, Act]) -> None:
    assert (act_on(phase, at_once=False), act_on(phase, at_once=True)) == acts


@pytest.mark.parametrize(
    ("states", "options", "commands", "says"),
    [
        ([PENDING], [], ["12"], "waited, and was removed from the queue"),
        ([PENDING], ["--now"], ["12"], "waited, and was removed from the queue"),
        (
            [RUNNING],
            [],
            ["--batch --signal=USR2 12"],
            "was asked to stop: it writes checkpoints, ends, and does not",
        ),
        ([RUNNING], ["--now"], ["12"], "was killed, and does not come back"),
        # It came back just before it could be asked.
        (
            [RUNNING, PENDING],
            [],
            ["--batch --signal=USR2 12", "12"],
            "waited, and was removed from the queue",
        ),
        ([FAILED], [], [], "nothing to cancel: job 12 (Slurm): ended, FAILED, exit code 75"),
        ([], [], [], "nothing to cancel: job 12 (Slurm): no longer known to the scheduler"),
    ],
)
def test_cancel_says_what_it_did(
    site: Site, states: list[str], options: list[str], commands: list[str], says: str, capsys: Capture
) -> None:
    run = site(*states)
    assert main(["cancel", "a", *options]) == 0
    shown = capsys.readouterr().out
    assert shown.startswith("a: ")
    assert says in shown
    assert cancels() == commands
    assert (run / "batch.cancel").exists() == bool(commands)


def test_cancel_takes_tasks_of_an_array_and_dependent_jobs(site: Site, capsys: Capture) -> None:
    site(RUNNING, number="7_1", run="a1")
    site(FAILED, number="7_2", run="a2")
    site(RUNNING, number="8", run="b")
    site(PENDING, number="9", run="b")  # continues it
    assert main(["cancel", "a1", "a2", "b", "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)
    assert [(row["directory"], row["job"]["id"], row["action"]) for row in rows] == [
        ("a1", "7_1", "asked to stop"),
        ("a2", "7_2", "nothing"),
        ("b", "8", "asked to stop"),
        ("b", "9", "removed"),
    ]


def test_cancel_takes_a_whole_chain_each_with_its_own_mark(site: Site, capsys: Capture) -> None:
    site(FAILED, number="7")
    for number, state in (("8", RUNNING), ("9", PENDING), ("10", PENDING)):
        site(state, number=number)
        record = read_batch_jobs(Path("a"))[-1]
        append_batch_job(Path("a"), replace(record, cancel=f"batch-{number}.cancel"))
    assert main(["cancel", "a"]) == 0
    shown = capsys.readouterr().out.splitlines()
    assert [line.split(" (Slurm) ")[0] for line in shown] == ["a: job 8", "a: job 9", "a: job 10"]
    assert cancels() == ["--batch --signal=USR2 8", "9", "10"]
    assert sorted(path.name for path in Path("a").glob("*.cancel")) == [
        "batch-10.cancel",
        "batch-8.cancel",
        "batch-9.cancel",
    ]


def test_a_job_that_runs_is_seen_behind_one_that_has_ended(site: Site, capsys: Capture) -> None:
    site(RUNNING, number="8")
    site(FAILED, number="9")
    assert main(["status", "a"]) == 0
    assert "job 8 (Slurm): running on n1" in capsys.readouterr().out
    assert main(["cancel", "a"]) == 0
    assert cancels() == ["--batch --signal=USR2 8"]


def test_what_fails_for_one_run_does_not_keep_cancel_from_the_others(site: Site, capsys: Capture) -> None:
    site(RUNNING, run="a")
    site(RUNNING, run="b", number="13")
    (Path("a") / "batch.cancel").mkdir()  # cannot be written
    Path("batch.sh").touch()
    assert main(["cancel", "nosuch", "a", "batch.sh", "b"]) == 2
    printed = capsys.readouterr()
    assert cancels() == ["--batch --signal=USR2 12", "--batch --signal=USR2 13"]
    assert "nosuch: no such directory" in printed.err
    assert (
        "a: job 12 (Slurm) was asked to stop, but it may go on or come back, because a/batch.cancel cannot "
        "be made (Is a directory): make an empty file of this name, or kill the job with --now" in printed.err
    )
    assert "batch.sh: is a file, and has no job" in printed.out
    assert "b: job 13 (Slurm) was asked to stop: it writes checkpoints" in printed.out
    assert main(["cancel", "a", "--now"]) == 0, "a job that is killed needs no mark"
    assert main(["cancel", "a", "batch.sh", "--json"]) == 2
    rows = json.loads(capsys.readouterr().out.partition("\n")[2])
    assert [(row["action"], bool(row["problem"]), bool(row["job"])) for row in rows] == [
        ("asked to stop", True, True),
        ("nothing", True, False),
    ]


def test_a_directory_above_those_of_an_array_names_them(site: Site, capsys: Capture) -> None:
    site(RUNNING, run="all/seed-0")
    assert main(["cancel", "all"]) == 2
    assert (
        "all: the directories in it have the batch jobs, such as those of an array: 'hpcbal cancel all/*'"
        in (capsys.readouterr().err)
    )


def test_a_copy_of_an_output_directory_has_no_jobs(site: Site, capsys: Capture) -> None:
    run = site(RUNNING)
    (record,) = read_batch_jobs(run)
    append_batch_job(run, replace(record, directory=str(Path.cwd()), words=("run", "x", "--output", "a")))
    shutil.copytree("a", "copy")
    assert main(["cancel", "copy"]) == 2
    said = capsys.readouterr().err
    assert f"copy: is a copy of {Path.cwd()}/a, whose job 12 writes there; cancel that" in said
    assert not Path("calls").exists()
    shutil.move("a", "moved")
    assert main(["cancel", "moved"]) == 0
    assert cancels() == ["--batch --signal=USR2 12"]


@pytest.mark.parametrize(
    ("states", "code", "says"),
    [
        (
            [RUNNING],
            2,
            "hpcbal: a: job 12 (Slurm) could not be asked to stop: scancel has ended with 1: Access",
        ),
        ([PENDING], 2, "could not be removed: scancel has ended with 1: Access/permission"),
        ([RUNNING, FAILED], 0, "nothing to cancel: job 12 (Slurm): ended, FAILED"),  # meanwhile
    ],
)
def test_a_scheduler_that_refuses_is_quoted(
    site: Site, states: list[str], code: int, says: str, capsys: Capture
) -> None:
    site(*states)
    Path("refused").write_text("scancel: error: Kill job error on job id 12: Access/permission denied\n")
    assert main(["cancel", "a"]) == code
    printed = capsys.readouterr()
    assert says.replace("Access", "scancel: error: Kill job error on job id 12: Access") in (
        printed.err if code else printed.out
    )


def test_a_scheduler_that_does_not_answer_leaves_a_job_that_does_not_come_back(
    site: Site, capsys: Capture
) -> None:
    run = site()
    Path("bin/scontrol").unlink()
    assert main(["cancel", "a"]) == 2
    assert "its state is not known" in (said := capsys.readouterr().err)
    assert said.endswith("it was asked to stop if it runs; it does not come back once it has stopped\n")
    assert (run / "batch.cancel").exists()
    assert main(["cancel", "a", "--now"]) == 2, "nobody knows whether it ran"
    assert "it was killed if it runs" in capsys.readouterr().err
    assert cancels() == ["--batch --signal=USR2 12", "12"]
    Path("refused").write_text("scancel: error: down\n")
    assert main(["cancel", "a"]) == 2
    assert "it could not be asked to stop: scancel has ended with 1: scancel: error: down;" in (
        capsys.readouterr().err
    )


@pytest.mark.parametrize(
    ("directory", "says"), [("b", "no batch job of 'hpcbal submit'"), ("c", "no such directory")]
)
def test_cancel_without_a_batch_job_says_so(site: Site, directory: str, says: str, capsys: Capture) -> None:
    Path("b").mkdir()
    assert main(["cancel", directory]) == 2
    assert says in capsys.readouterr().err


def test_a_job_looks_only_at_its_own_mark(tmp_path: Path, capsys: Capture) -> None:
    """One that was submitted behind a cancelled job is not cancelled."""
    (tmp_path / "batch.cancel").touch()
    starting = ["launcher", "--starting", "--output", str(tmp_path), "--mark"]
    assert main([*starting, "batch-2.cancel"]) == 0
    assert main([*starting, "batch.cancel"]) == 75
    assert "cancelled by hpcbal cancel" in capsys.readouterr().err
